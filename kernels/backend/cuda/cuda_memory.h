// The memory of the CUDA backend: packed copies, the lanes of chunks, and a reserve on the
// device.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_MEMORY_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_MEMORY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "kernels/backend/cuda/cuda_runtime.h"
#include "kernels/backend/rotate_job.h"
#include "proto/mutex.h"

namespace rope::kernels {

// Copies a rectangle of (token, head) vectors in host memory from one set of strides to another, in
// the longest runs of adjacent bytes that both sides allow.
//
// Threading:  A pure function of its arguments.
// Errors:     None.

struct CudaRectangle {
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t element_bytes = 0;
};

// Bytes between the vectors are not touched.
void CopyRectangle(const CudaRectangle& rectangle, const char* source, const Strides& from,
                   char* target, const Strides& to);

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

// CudaReserve: all memory that the CUDA backend uses, taken at the start, so that a device which
// others fill later cannot fail a batch.
//
// Threading:  Thread-compatible.
// Ownership:  Owns the memory.
// Errors:     Create: UNAVAILABLE, with what there is and what is wanted, if even the smallest
//             reserve does not fit; another error of CUDA as CudaStatus.

// Tables: the default size of the server's table cache, so that its pages fit here too. Each step
// down halves tables and lanes, down to the smallest.
inline constexpr int64_t kCudaTableBytes = int64_t{256} << 20;
inline constexpr int64_t kCudaTableBytesMin = int64_t{8} << 20;
// 64 MiB a side in total: the tensors of one large request in flight.
inline constexpr int kCudaLanesMax = 32;

struct CudaReserve {
  // `lanes_wanted`: 1 to kCudaLanesMax.
  static absl::StatusOr<CudaReserve> Create(int lanes_wanted);

  std::string detail(int lanes_wanted) const;  // for people
  char* table() const { return device.data(); }
  char* lanes_device() const { return device.data() + table_bytes; }

  CudaBuffer device;  // the table's block, then the lanes
  CudaBuffer pinned;  // the lanes
  int64_t table_bytes;
  int lanes;
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_MEMORY_H_
