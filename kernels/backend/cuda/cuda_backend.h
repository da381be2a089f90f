// The cuda backend: one grouped launch per ragged batch, on the first GPU.
//
// A small batch (kCudaSmallBytes) is one copy to the device, one launch and one copy back, on one
// lane. A result in registered host memory (HostMemory) takes another copy back. A larger
// batch is cut into chunks. The threads of a pool share the chunks, and each thread has several in
// flight, so that staging copies, both directions of the bus, and kernels overlap.
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

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/cuda/cuda_plan.h"

namespace rope::kernels {

absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(const BackendOptions& options,
                                                         const CudaShapes& shapes = {});

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_BACKEND_H_
