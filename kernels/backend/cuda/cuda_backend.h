// The cuda backend: one plain lane on the first GPU.
//
// A batch is copied to the device, rotated by one launch of each kernel that it needs (one request
// of a common shape: one), and copied back, on one stream, with one synchronisation. A batch that
// does not fit the lane is cut into parts (cuda_batch.h), one after the other. Batches of several
// threads take turns. Never call Rotate on a thread that captures a graph in global mode.
//
// All memory is taken by MakeCudaBackend, and each kernel has run there and given the right answer.
//
// Threading:  As Backend.
// Errors:     As Backend: `cuda: <call>: <CUDA's message>`. All work in flight has ended when
//             Rotate returns, unless the device is lost. kNotBuilt: a move by a table; a token that
//             does not fit the lane; an fp8 input of a batch that is not one rectangle
//             (cuda_plan.h), or whose saturated elements are counted. MakeCudaBackend: UNAVAILABLE,
//             with the reason; UNIMPLEMENTED, this build is without kernels.
// Limits:     kCudaLaneBytes of device memory, beside the context, and of pinned memory.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_BACKEND_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/cuda/cuda_plan.h"

namespace rope::kernels {

absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(const CudaShapes& shapes = {});

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_BACKEND_H_
