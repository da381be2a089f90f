// LaunchCuda: enqueues a planned batch on a stream. Its source, cuda_launch.cu, is the only file of
// the CUDA backend that nvcc compiles.
//
// Jobs of a launch of at most kCudaJobsByValue are passed by value, with the launch.
// LaunchCuda neither allocates nor synchronises, so a stream in capture mode records it as kernel
// nodes of a graph.
//
// Threading:  Any thread; several threads at once on different streams.
// Ownership:  The caller owns jobs, rows and tensors and keeps them until the launches have run.
// Errors:     Returns a cudaError_t, cudaSuccess included. No launch follows a failed one.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_LAUNCH_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "kernels/backend/cuda/cuda_plan.h"

namespace rope::kernels {

// Enqueues the launches of `plan`. `device_jobs` is a copy of plan.jobs in device memory; any
// pointer if not plan.NeedsTable().
cudaError_t LaunchCuda(const CudaPlan& plan, const CudaJob* device_jobs, cudaStream_t stream);

// Whether this build has code for the current device.
cudaError_t CheckCudaKernels();

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_LAUNCH_H_
