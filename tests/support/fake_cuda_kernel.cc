#include "tests/support/fake_cuda_kernel.h"

// Apart from nvcc's namespace: both may be in one program.
#define ROPE_CUDA_NAMESPACE cuda_on_cpu
#include "kernels/backend/cuda/cuda_fused_ops.cuh"
#include "kernels/backend/cuda/cuda_rotate.cuh"

namespace rope::testing {

namespace {

auto KernelOf(kernels::CudaKernel kernel) {
  switch (kernel) {
    case kernels::CudaKernel::kVector:
      return kernels::cuda_on_cpu::RotateVector;
    case kernels::CudaKernel::kScalar:
      return kernels::cuda_on_cpu::RotateScalar;
    case kernels::CudaKernel::kFused:
      break;
  }
  return kernels::cuda_on_cpu::RotateFused;
}

}  // namespace

void RunCudaKernelOnCpu(kernels::CudaKernel kernel, uint32_t blocks, uint32_t threads,
                        const kernels::CudaJob* jobs, uint32_t count) {
  kernels::cuda_cpu_shim::Launch(KernelOf(kernel), blocks, threads, jobs, count);
}

}  // namespace rope::testing
