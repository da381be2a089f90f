// A backend that plans as the cuda backend does and runs the CUDA kernels' source on the CPU, on
// the jobs' own memory.
#ifndef ROPE_TESTS_SUPPORT_FAKE_CUDA_BACKEND_H_
#define ROPE_TESTS_SUPPORT_FAKE_CUDA_BACKEND_H_

#include <memory>

#include "kernels/backend/backend.h"
#include "kernels/backend/cuda/cuda_plan.h"

namespace rope::testing {

// All launches of a plan.
void RunCudaPlanOnCpu(const kernels::CudaPlan& plan);

// Named "cuda_source".
std::unique_ptr<kernels::Backend> MakeCudaSourceBackend(const kernels::CudaShapes& shapes = {});

// Forces lists: for every launch, and in the shape of the largest ones.
inline kernels::CudaShapes AlwaysLists() {
  return {.rectangles = false};
}
inline kernels::CudaShapes AlwaysHeadLoop() {
  return {.items_few = 0, .items_per_head = 0, .rectangles = false};
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_FAKE_CUDA_BACKEND_H_
