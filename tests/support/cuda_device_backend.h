// The cuda backend with tensors in device memory: each tensor of a batch moves to the device, at
// its own strides and the same distance from a multiple of 256 bytes, and its vectors come back.
//
// Errors:     The backend's. The process stops if a byte outside the vectors changed on the device.
#ifndef ROPE_TESTS_SUPPORT_CUDA_DEVICE_BACKEND_H_
#define ROPE_TESTS_SUPPORT_CUDA_DEVICE_BACKEND_H_

#include <memory>

#include "kernels/backend/backend.h"
#include "kernels/backend/cuda/cuda_plan.h"

namespace rope::testing {

// REQUIRES: the cuda backend can be created.
std::unique_ptr<kernels::Backend> MakeCudaDeviceBackend(const kernels::CudaShapes& shapes = {});

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_CUDA_DEVICE_BACKEND_H_
