// A backend that plans as the cuda backend does and runs the CUDA kernels' source on the CPU, on
// the jobs' own memory.
#ifndef ROPE_TESTS_SUPPORT_FAKE_CUDA_BACKEND_H_
#define ROPE_TESTS_SUPPORT_FAKE_CUDA_BACKEND_H_

#include <memory>

#include "kernels/backend/backend.h"
#include "kernels/backend/cuda/cuda_plan.h"

namespace rope::testing {

// Named "cuda_source".
std::unique_ptr<kernels::Backend> MakeCudaSourceBackend(const kernels::CudaShapes& shapes = {});

// Forces the shape of the largest launches for every launch.
inline kernels::CudaShapes AlwaysHeadLoop() {
  return {.items_few = 0, .items_per_head = 0, .tile_tokens = 1};
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_FAKE_CUDA_BACKEND_H_
