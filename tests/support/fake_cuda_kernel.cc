#include "tests/support/fake_cuda_kernel.h"

#include "kernels/backend/cuda/cuda_fused_ops.cuh"
#include "kernels/backend/cuda/cuda_rotate.cuh"

namespace rope::testing {

namespace {

auto KernelOf(kernels::CudaKernel kernel) {
  switch (kernel) {
    case kernels::CudaKernel::kVector:
      return kernels::cuda_device::RotateVector;
    case kernels::CudaKernel::kScalar:
      return kernels::cuda_device::RotateScalar;
    case kernels::CudaKernel::kFused:
      break;
  }
  return kernels::cuda_device::RotateFused;
}

}  // namespace

void RunCudaKernelOnCpu(kernels::CudaKernel kernel, uint32_t blocks, uint32_t threads,
                        const kernels::CudaJob* jobs, uint32_t count) {
  kernels::cuda_cpu_shim::Launch(KernelOf(kernel), blocks, threads, jobs, count);
}

}  // namespace rope::testing
