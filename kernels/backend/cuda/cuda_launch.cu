#include "kernels/backend/cuda/cuda_fused_ops.cuh"
#include "kernels/backend/cuda/cuda_launch.h"
#include "kernels/backend/cuda/cuda_rotate.cuh"

namespace rope::kernels {

cudaError_t LaunchCuda(const CudaPlan& plan, const CudaJob* device_jobs, cudaStream_t stream) {
  for (const CudaLaunch& launch : plan.launches) {
    const CudaJob* const jobs = device_jobs + launch.first_job;
    if (launch.kernel == CudaKernel::kVector) {
      cuda_device::RotateVector<<<launch.blocks, launch.threads, 0, stream>>>(jobs, launch.jobs);
    } else if (launch.kernel == CudaKernel::kScalar) {
      cuda_device::RotateScalar<<<launch.blocks, launch.threads, 0, stream>>>(jobs, launch.jobs);
    } else {
      cuda_device::RotateFused<<<launch.blocks, launch.threads, 0, stream>>>(jobs, launch.jobs);
    }
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t CheckCudaKernels() {
  cudaFuncAttributes attributes;
  for (const auto kernel :
       {cuda_device::RotateVector, cuda_device::RotateScalar, cuda_device::RotateFused}) {
    const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace rope::kernels
