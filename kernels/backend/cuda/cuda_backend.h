// The cuda backend: one grouped launch per ragged batch, on the first GPU.
//
// A small batch (kCudaSmallBytes) is one copy to the device, one launch and one copy back, on one
// lane; the smallest ones (CudaPolicy) need no copy. A larger batch is cut into chunks. The threads
// of a pool share the chunks, and each thread has several in flight, so that staging copies, both
// directions of the bus, and kernels overlap.
// Kernels access tensors of MemoryKind::kDevice directly; their contents must be complete, because
// Rotate does not wait for the stream that writes them. A batch of such tensors whose rows are in
// the page mirror is one launch and no copy. Never call Rotate on a thread that captures a graph in
// global mode.
//
// All memory is reserved by MakeCudaBackend, and each kernel has run there and given the right
// answer.
//
// Threading:  As Backend.
// Errors:     As Backend: `cuda: <call>: <CUDA's message>`. All work in flight has ended when
//             Rotate returns, unless the device is lost. MakeCudaBackend: UNAVAILABLE, with the
//             reason.
// Limits:     Device memory: CudaReserve, beside the context. Pinned memory: the lanes.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_BACKEND_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_BACKEND_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/cuda/cuda_plan.h"

namespace rope::kernels {

// Constants to tune by measurements on a GPU.
struct CudaPolicy {
  CudaShapes shapes = {};
  // A chunk whose kernel accesses no more bytes of the lane is rotated where it is packed: the
  // kernel reads and writes pinned memory over the bus (zero copy). To start two copies takes
  // longer than so few bytes. 0: every chunk is copied.
  int64_t zero_copy_bytes = 64 << 10;
};

absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(const BackendOptions& options,
                                                         const CudaPolicy& policy = {});

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_BACKEND_H_
