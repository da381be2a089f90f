// CudaLanes: the streams of the CUDA backend, each with its staging memory on both sides.
//
// A lane serves one chunk of a batch at a time. It has pinned memory for packed inputs, a device
// buffer of the same size, and the stream for its copies and launches. States of a lane:
//
//   absent --Acquire--> busy --Release--> free --Acquire--> busy
//      ^                 |
//      +---- Discard ----+   (also Release of a lane larger than kCudaLaneBytes)
//
// At most `lanes` are busy or free together.
//
// Threading:  CudaLanes is thread-safe; its lock is not held during a CUDA call. A lane belongs to
//             the thread that holds it.
// Ownership:  Holders return every lane before CudaLanes is destroyed, with no work in flight.
// Errors:     INTERNAL: a lane could not be created.
// Limits:     Pinned and device memory of at most kCudaLanesMax * kCudaLaneBytes each. A single
//             (token, head) vector that is larger than a lane adds its size while its chunk runs.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_LANES_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_LANES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/cuda/cuda_runtime.h"
#include "proto/mutex.h"

namespace rope::kernels {

// Bytes of a lane, on each side. A copy of this size takes some 40 microseconds on the fastest
// buses, ten times the cost of starting it, and several such buffers fit into a CPU's cache.
inline constexpr int64_t kCudaLaneBytes = 2 << 20;
// 64 MiB per side in total: the tensors of one large request in flight.
inline constexpr int kCudaLanesMax = 32;

struct CudaLane {
  CudaBuffer pinned;
  CudaBuffer device;
  CudaStream stream;  // destroyed before the memory that its work uses
};

class CudaLanes {
 public:
  // REQUIRES: 1 <= lanes <= kCudaLanesMax.
  explicit CudaLanes(int lanes) : lanes_max_(lanes) {}

  // Returns a lane of at least `bytes`. Waits while all lanes are busy. REQUIRES: the calling
  // thread holds no lane.
  absl::StatusOr<std::unique_ptr<CudaLane>> Acquire(int64_t bytes);
  // As Acquire, but returns null instead of waiting.
  absl::StatusOr<std::unique_ptr<CudaLane>> TryAcquire(int64_t bytes);
  void Release(std::unique_ptr<CudaLane> lane);
  // Destroys a lane after an error, instead of Release. A new lane can take its place.
  void Discard(std::unique_ptr<CudaLane> lane);

 private:
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !free_.empty() || busy_ < lanes_max_;
  }
  // Returns a free lane, or null if one must be created. Counts it as busy before the lock is
  // released.
  std::unique_ptr<CudaLane> Pop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::unique_ptr<CudaLane>> Prepare(std::unique_ptr<CudaLane> lane, int64_t bytes);

  const int lanes_max_;
  proto::Mutex mu_;
  proto::CondVar room_;  // signalled when HasRoom() may have become true
  std::vector<std::unique_ptr<CudaLane>> free_ ABSL_GUARDED_BY(mu_);
  int busy_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_LANES_H_
