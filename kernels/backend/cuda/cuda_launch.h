// LaunchCuda: puts a planned batch on a stream. What nvcc compiles of the CUDA backend is behind
// this header, in cuda_launch.cu.
//
// It neither allocates nor synchronises, so that a stream in capture records it as kernel nodes of
// a graph.
//
// Threading:  Any thread, several at once on different streams.
// Ownership:  Jobs, rows and tensors stay the caller's and must live until the launches have run.
// Errors:     A cudaError_t, cudaSuccess included; launches after a failed one are not made.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_LAUNCH_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_LAUNCH_H_

#include <cuda_runtime_api.h>

#include "kernels/backend/cuda/cuda_plan.h"

namespace rope::kernels {

// Enqueues the launches of `plan`; `device_jobs`: a copy of plan.jobs in device memory.
cudaError_t LaunchCuda(const CudaPlan& plan, const CudaJob* device_jobs, cudaStream_t stream);

// Whether this build has code for the current device.
cudaError_t CheckCudaKernels();

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_LAUNCH_H_
