// The cuda backend: one grouped launch for each ragged batch, on the first GPU.
//
// A small batch (kCudaSmallBytes) is one copy to the device, one launch and one copy back, on one
// lane. A larger one is cut into chunks that the threads of a pool share out, each with several in
// flight: copies between pageable and pinned memory, both directions of the bus, and kernels then
// overlap. Pinned host tensors are copied without staging; tensors in device memory are rotated
// where they lie and must be complete, since no stream of their writer is waited for. Table pages
// are kept on the device (CudaPageMirror).
//
// Threading:  As Backend.
// Errors:     INTERNAL: a CUDA call failed, `cuda: <call>: <CUDA's words>`. What was in flight has
//             ended by then; the next batch uses fresh lanes, and fails the same way where the
//             device is lost. MakeCudaBackend: UNAVAILABLE, with the reason.
// Limits:     Device memory: kCudaMirrorBytes and the lanes' (cuda_lanes.h). Pinned memory: the
//             lanes' and 1 MiB.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_BACKEND_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_BACKEND_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"

namespace rope::kernels {

// As much as the server's table cache holds by default: what is warm there is warm here.
inline constexpr int64_t kCudaMirrorBytes = int64_t{256} << 20;

absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(const BackendOptions& options);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_BACKEND_H_
