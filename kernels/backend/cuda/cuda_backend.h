// The cuda backend: one grouped launch per ragged batch, on the first GPU.
//
// A small batch (kCudaSmallBytes) is one copy to the device, one launch and one copy back, on one
// lane. A larger batch is cut into chunks. The threads of a pool share the chunks, and each thread
// has several in flight, so that staging copies, both directions of the bus, and kernels overlap.
// Pinned host tensors are copied without staging. Kernels access tensors in device memory directly;
// their contents must be complete, because Rotate does not wait for the stream that writes them.
// Table pages are cached on the device (CudaPageMirror).
//
// Threading:  As Backend.
// Errors:     INTERNAL: a CUDA call failed, `cuda: <call>: <CUDA's message>`. All work in flight
//             has ended when Rotate returns. The next batch uses new lanes; it fails in the same
//             way if the device is lost. MakeCudaBackend: UNAVAILABLE, with the reason.
// Limits:     Device memory: kCudaMirrorBytes and the lanes (cuda_lanes.h). Pinned memory: the
//             lanes and 1 MiB.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_BACKEND_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_BACKEND_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"

namespace rope::kernels {

// The default size of the server's table cache, so that its pages fit here too.
inline constexpr int64_t kCudaMirrorBytes = int64_t{256} << 20;

absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(const BackendOptions& options);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_BACKEND_H_
