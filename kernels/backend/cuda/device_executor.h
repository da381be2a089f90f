// DeviceExecutor: rotations of tensors that lie on a GPU, enqueued on a stream of the caller's.
//
//   jobs -> rectangles (cuda_plan.h) -> one launch for each, on the caller's stream
//
// Enqueue neither synchronises nor allocates on the device, once the device and the table of the
// rotation are there: in a stream that is captured it adds kernel nodes to the graph. The first
// call of a device loads its kernels and checks each against known answers, which takes
// milliseconds, or half a second where the driver compiles them; the first call of a table builds
// it. Neither can be done while the stream is captured, nor while another stream is captured in
// global mode.
//
// Threading:  Thread-safe; a call runs on its thread alone, and leaves the thread's context as it
//             was.
// Ownership:  Owns tables and kernels: graphs that were captured go before it. The caller keeps
//             tensors, positions and count until the work has run. Jobs are read before the return.
// Errors:     UNAVAILABLE: no driver or no GPU, with words; also for a forked child. UNIMPLEMENTED:
//             a build without kernels; a job that is no rectangle. INVALID_ARGUMENT: memory that is
//             not of the queue's device. FAILED_PRECONDITION: a capture before the device or the
//             table is there. RESOURCE_EXHAUSTED: the budget of the tables, or the device, is full.
//             INTERNAL: a kernel that failed or gave a wrong result when it was checked, for which
//             the device is refused from then on; as CudaStatus. All but an error of a launch come
//             before anything is enqueued.
#ifndef ROPE_KERNELS_BACKEND_CUDA_DEVICE_EXECUTOR_H_
#define ROPE_KERNELS_BACKEND_CUDA_DEVICE_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend/rotate_job.h"
#include "kernels/frequencies/frequencies.h"
#include "proto/mutex.h"
#include "rope/device.h"

namespace rope::kernels {

// The rows of a job's tokens: none, one for all, or those of a table by positions. Views.
struct DeviceRows {
  const float* one_row = nullptr;            // in host memory
  const Frequencies* frequencies = nullptr;  // of the table
  int64_t first = 0;                         // the position of the first token; later ones count up
  const void* positions = nullptr;           // of each token, on the device, in place of `first`
  bool wide = false;                         // they are int64, not int32
  bool operator==(const DeviceRows&) const = default;
};

// A rectangle of a tensor: `job` without rows. Its `input` and `output` are addresses of a device;
// they are in place, or do not overlap. REQUIRES: it has something to do; no weights and no scales
// of tokens.
struct DeviceJob {
  RotateJob job = {};
  DeviceRows rows = {};
  size_t tensor = 0;  // for errors; never less than that of the job before it in the same run
};

class DeviceExecutor {
 public:
  explicit DeviceExecutor(int64_t table_bytes_max);
  ~DeviceExecutor();
  DeviceExecutor(const DeviceExecutor&) = delete;
  DeviceExecutor& operator=(const DeviceExecutor&) = delete;

  // `table_rows`: of the tables that are not resident yet. Returns the device's name, which lives
  // as long as the executor.
  absl::StatusOr<std::string_view> Enqueue(absl::Span<const DeviceJob> jobs, int64_t table_rows,
                                           const DeviceQueue& queue);

 private:
  struct Gpu;
  absl::StatusOr<Gpu*> FindOrOpen(const DeviceQueue& queue);

  const int64_t table_bytes_max_;
  proto::SharedMutex mutex_;
  // By ordinal. A GPU that is there stays.
  std::map<int, std::unique_ptr<Gpu>> gpus_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_DEVICE_EXECUTOR_H_
