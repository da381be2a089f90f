// The source of RotateVector once more, with ordinary loads and stores of tensors.
#include <algorithm>

#define ROPE_CUDA_NAMESPACE cuda_without_hints
#define ROPE_CUDA_CACHE_HINTS 0
#include "kernels/backend/cuda/cuda_rotate.cuh"
#include "tests/gpu/yardsticks.h"

namespace rope::bench {

using kernels::cuda_without_hints::RotateVector;
using kernels::cuda_without_hints::RotateVectorByValue;

cudaError_t LaunchWithoutHints(const kernels::CudaPlan& plan, const kernels::CudaJob* device_jobs,
                               cudaStream_t stream) {
  for (const kernels::CudaLaunch& launch : plan.launches) {
    if (launch.kernel != kernels::CudaKernel::kVector) return cudaErrorNotSupported;
    const kernels::CudaJob* const jobs = plan.jobs.data() + launch.first_job;
    if (launch.jobs <= kernels::kCudaJobsByValue) {
      kernels::CudaJobs list;
      std::copy_n(jobs, launch.jobs, list.jobs);
      RotateVectorByValue<<<launch.blocks, launch.threads, 0, stream>>>(list, launch.jobs);
    } else {
      RotateVector<<<launch.blocks, launch.threads, 0, stream>>>(device_jobs + launch.first_job,
                                                                 launch.jobs);
    }
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace rope::bench
