// CudaLanes: the streams of the CUDA backend, each with its staging memory on both sides.
//
// A lane serves one chunk of a batch at a time: free --Acquire--> busy --Release--> free. All lanes
// exist from the start.
//
// Threading:  CudaLanes is thread-safe; its lock is not held during a CUDA call. A lane belongs to
//             the thread that holds it.
// Ownership:  The memory is the caller's. Holders return every lane before CudaLanes is destroyed,
//             with no work in flight.
// Errors:     Create: as CudaStatus.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_LANES_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_LANES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "kernels/backend/cuda/cuda_runtime.h"
#include "proto/mutex.h"

namespace rope::kernels {

// Bytes of a lane, on each side. A copy of this size takes some 40 microseconds on the fastest
// buses, ten times the cost of starting it, and several such buffers fit into a CPU's cache.
inline constexpr int64_t kCudaLaneBytes = 2 << 20;

struct CudaLane {
  char* pinned;
  char* device;
  CudaStream stream;
};

class CudaLanes {
 public:
  // `pinned` and `device` have `lanes` times kCudaLaneBytes. REQUIRES: lanes >= 1.
  static absl::StatusOr<std::unique_ptr<CudaLanes>> Create(int lanes, char* pinned, char* device);

  // Returns a lane. Waits while all are busy. REQUIRES: the calling thread holds no lane.
  CudaLane* Acquire();
  // Returns another lane to a thread that holds one, or null. The last free lane is left to threads
  // that hold none, so that a small batch does not wait for a large one.
  CudaLane* TryAcquire();
  void Release(CudaLane* lane);

 private:
  CudaLanes() = default;
  CudaLane* Pop() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::vector<CudaLane> lanes_;
  proto::Mutex mu_;
  proto::CondVar released_;
  std::vector<CudaLane*> free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_LANES_H_
