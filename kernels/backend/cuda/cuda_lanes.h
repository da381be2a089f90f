// CudaLanes: the streams of the CUDA backend, each with its staging memory on both sides.
//
// A lane serves one chunk of a batch at a time: pinned memory that inputs are packed into, a device
// buffer of the same size, and the stream that copies and launches go to. Lanes are made at first
// need, up to a fixed number, and kept; whoever finds all of them busy waits.
//
// Threading:  CudaLanes is thread-safe. A lane belongs to the thread that holds it.
// Ownership:  Holders return every lane before CudaLanes is destroyed, and with nothing in flight.
// Errors:     INTERNAL: a lane could not be made.
// Limits:     Pinned and device memory of at most kCudaLanesMax * kCudaLaneBytes each, and for the
//             time of one chunk a single (token, head) vector more that is larger than a lane.
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

// Of a lane, each side. A copy of this size takes some 40 microseconds on the fastest buses, ten
// times what it costs to start one; and several fit in a processor's cache.
inline constexpr int64_t kCudaLaneBytes = 2 << 20;
// Together 64 MiB a side: the tensors of one large request in flight.
inline constexpr int kCudaLanesMax = 32;

struct CudaLane {
  CudaBuffer pinned;
  CudaBuffer device;
  CudaStream stream;  // goes before the memory that it works on
};

class CudaLanes {
 public:
  // REQUIRES: 1 <= lanes <= kCudaLanesMax.
  explicit CudaLanes(int lanes) : lanes_max_(lanes) {}

  // A lane of at least `bytes`. Waits while all are busy: who holds one already must not call it.
  absl::StatusOr<std::unique_ptr<CudaLane>> Acquire(int64_t bytes);
  // The same, but null instead of waiting.
  absl::StatusOr<std::unique_ptr<CudaLane>> TryAcquire(int64_t bytes);
  void Release(std::unique_ptr<CudaLane> lane);
  // Instead of Release, after an error: another one is made in its place.
  void Discard(std::unique_ptr<CudaLane> lane);

 private:
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !free_.empty() || busy_ < lanes_max_;
  }
  // Counts as busy before the lock is given up.
  std::unique_ptr<CudaLane> Pop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<std::unique_ptr<CudaLane>> Prepare(std::unique_ptr<CudaLane> lane, int64_t bytes);

  const int lanes_max_;
  proto::Mutex mu_;
  proto::CondVar room_;  // there may be room again
  std::vector<std::unique_ptr<CudaLane>> free_ ABSL_GUARDED_BY(mu_);
  int busy_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_LANES_H_
