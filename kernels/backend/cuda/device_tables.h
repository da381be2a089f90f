// DeviceTables: the cos/sin tables that are resident on a GPU, each as a whole: rows 0 to N-1 of
// one TableKey, float32, at an address that stays, so that a captured graph may name it.
//
// A table is built on the calling thread, in pages as those of TableCache, so that its rows have
// the same bits: 131072 rows of 64 pairs take 0.2 seconds and 64 MiB. It never changes, grows or
// goes while the DeviceTables lives.
//
// Threading:  Thread-safe. Build holds up every other call.
// Ownership:  Owns the memory of the tables. REQUIRES of Build and the destructor: the device's
//             context is current on the thread.
// Errors:     RESOURCE_EXHAUSTED: the budget is full, or the device. As CudaStatus. std::bad_alloc.
// Limits:     budget_bytes of all tables together.
#ifndef ROPE_KERNELS_BACKEND_CUDA_DEVICE_TABLES_H_
#define ROPE_KERNELS_BACKEND_CUDA_DEVICE_TABLES_H_

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/cuda/cuda_driver.h"
#include "kernels/frequencies/frequencies.h"
#include "proto/mutex.h"

namespace rope::kernels {

class DeviceTables {
 public:
  // What kernels read.
  struct View {
    const float* rows = nullptr;  // null: there is no such table
    int64_t count = 0;
  };

  explicit DeviceTables(int64_t budget_bytes) : budget_bytes_(budget_bytes) {}

  // The smallest resident table with at least `rows` rows.
  View Find(const Frequencies& frequencies, int64_t rows) const;
  // The same; if there is none, it is built with `rows` rows.
  absl::StatusOr<View> FindOrBuild(const Frequencies& frequencies, int64_t rows);

 private:
  struct Table {
    CudaMemory memory;
    int64_t rows = 0;
  };
  View FindLocked(const Frequencies& frequencies, int64_t rows) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  const int64_t budget_bytes_;
  mutable proto::SharedMutex mutex_;
  absl::flat_hash_map<TableKey, std::vector<Table>> tables_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_DEVICE_TABLES_H_
