#include "tests/support/fake_cuda_kernel.h"

// Apart from nvcc's namespace: both may be in one program.
#define ROPE_CUDA_NAMESPACE cuda_on_cpu
#include "kernels/cuda_rotate.cuh"

namespace rope::testing {

void RunCudaKernelOnCpu(kernels::CudaKernel kernel, uint32_t blocks, uint32_t threads,
                        const kernels::CudaJob* jobs, uint32_t count) {
  kernels::cuda_cpu_shim::Launch(kernel == kernels::CudaKernel::kVector
                                     ? kernels::cuda_on_cpu::RotateVector
                                     : kernels::cuda_on_cpu::RotateScalar,
                                 blocks, threads, jobs, count);
}

}  // namespace rope::testing
