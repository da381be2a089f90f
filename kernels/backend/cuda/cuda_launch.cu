#include <algorithm>

#include "kernels/backend/cuda/cuda_fused_ops.cuh"
#include "kernels/backend/cuda/cuda_launch.h"
#include "kernels/backend/cuda/cuda_rotate.cuh"

namespace rope::kernels {
namespace {

using TableKernel = void (*)(const CudaJob*, uint32_t);
using ValueKernel = void (*)(CudaJobs, uint32_t);

struct Kernels {
  TableKernel table;
  ValueKernel by_value;
};

Kernels KernelsOf(CudaKernel kernel) {
  switch (kernel) {
    case CudaKernel::kVector:
      return {cuda_device::RotateVector, cuda_device::RotateVectorByValue};
    case CudaKernel::kScalar:
      return {cuda_device::RotateScalar, cuda_device::RotateScalarByValue};
    case CudaKernel::kFused:
      break;
  }
  return {cuda_device::RotateFused, cuda_device::RotateFusedByValue};
}

}  // namespace

cudaError_t LaunchCuda(const CudaPlan& plan, const CudaJob* device_jobs, cudaStream_t stream) {
  for (const CudaLaunch& launch : plan.launches) {
    const Kernels kernels = KernelsOf(launch.kernel);
    const dim3 blocks(launch.blocks), threads(launch.threads);
    uint32_t count = launch.jobs;
    CudaJobs list;
    const CudaJob* jobs = nullptr;
    cudaError_t error = cudaSuccess;
    if (count <= kCudaJobsByValue) {
      std::copy_n(plan.jobs.data() + launch.first_job, count, list.jobs);
      void* arguments[] = {&list, &count};
      error = cudaLaunchKernel(reinterpret_cast<const void*>(kernels.by_value), blocks, threads,
                               arguments, 0, stream);
    } else {
      jobs = device_jobs + launch.first_job;
      void* arguments[] = {&jobs, &count};
      error = cudaLaunchKernel(reinterpret_cast<const void*>(kernels.table), blocks, threads,
                               arguments, 0, stream);
    }
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t CheckCudaKernels() {
  cudaFuncAttributes attributes;
  for (const CudaKernel kernel : {CudaKernel::kVector, CudaKernel::kScalar, CudaKernel::kFused}) {
    const Kernels kernels = KernelsOf(kernel);
    for (const void* function : {reinterpret_cast<const void*>(kernels.table),
                                 reinterpret_cast<const void*>(kernels.by_value)}) {
      const cudaError_t error = cudaFuncGetAttributes(&attributes, function);
      if (error != cudaSuccess) return error;
    }
  }
  return cudaSuccess;
}

}  // namespace rope::kernels
