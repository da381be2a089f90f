// Executor: runs one batch of slices. It looks up the rows of every token, cuts the tensors into
// jobs, and passes all jobs of the batch to the DeviceRouter in one call.
//
// Threading:  Thread-safe; Run may be called from several threads for different requests.
// Ownership:  The caller owns slices and requests, including the rows that a slice ran with.
//             Outputs are written to their destinations. Pool buffers are then the request's.
// Errors:     Each slice gets its own status. These errors fail one slice: an error of its tables,
//             no memory for its result (RESOURCE_EXHAUSTED). An error of the device fails the
//             batch.
// Limits:     A batch builds at most 2 MiB of table rows and one page more, for each axis and row
//             set. A slice then ends early.
#ifndef ROPE_SERVER_ENGINE_EXECUTOR_H_
#define ROPE_SERVER_ENGINE_EXECUTOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/cuda/device_executor.h"
#include "kernels/tables/table_cache.h"
#include "rope/device.h"
#include "server/clients/buffer_pool.h"
#include "server/request/request.h"

namespace rope::server {

// DeviceRouter: owns the server's backends and chooses the one that runs a batch.
//
// There is one backend, or a host backend and an accelerator, which then runs every batch. The host
// runs the batches that the accelerator cannot run (kNotBuilt: nothing has run, so also in place),
// and all later batches once the accelerator is lost.
//
// Threading:  Thread-safe, as the backends are.
// Errors:     Rotate: the backend's (backend.h).

class DeviceRouter {
 public:
  struct Device {
    std::string name;    // as in replies and metrics
    std::string detail;  // for humans
  };

  // `accelerator` may be null.
  explicit DeviceRouter(std::unique_ptr<kernels::Backend> host,
                        std::unique_ptr<kernels::Backend> accelerator = nullptr);

  // Creates the backends for --device: "auto" (the CPU), "cuda" (the GPU beside the CPU), or the
  // name of another backend. UNIMPLEMENTED, UNAVAILABLE: as CreateBackend.
  static absl::StatusOr<std::unique_ptr<DeviceRouter>> Create(
      const std::string& device, const kernels::BackendOptions& options);

  // Rotates all jobs on one device and returns its name, which lives as long as the router.
  absl::StatusOr<std::string_view> Rotate(absl::Span<const kernels::RotateJob> jobs);

  // The backend for all batches that the accelerator does not run.
  kernels::Backend& host() const { return *host_; }
  std::vector<Device> list() const;

  // How many direct batches may run at the same time, each on its caller's thread: `threads`, the
  // threads of the host backend. One with an accelerator: a launch takes about as long for many
  // requests as for one.
  int direct_slots(int threads) const { return accelerator_ == nullptr ? threads : 1; }

  // Called once, when the accelerator is lost, on the thread that saw the failure. Set it before
  // the first Rotate.
  using OnFault = std::function<void(std::string_view device, const absl::Status&)>;
  void set_on_fault(OnFault on_fault) { on_fault_ = std::move(on_fault); }

 private:
  const std::unique_ptr<kernels::Backend> host_;
  const std::unique_ptr<kernels::Backend> accelerator_;  // may be null
  OnFault on_fault_;
  std::atomic<bool> faulted_{false};
};

class Executor {
 public:
  // All three must outlive the executor.
  Executor(DeviceRouter& devices, kernels::TableCache& tables, BufferPool& pool)
      : devices_(devices), tables_(tables), pool_(pool) {}

  // May move the end of a slice. REQUIRES: none of the slices has run.
  void Run(absl::Span<Slice> slices);

 private:
  // Run without the handling of std::bad_alloc.
  void RunAll(absl::Span<Slice> slices);
  // Fills `outputs` with one buffer for each tensor, before the first slice runs.
  absl::Status AllocateOutputs(Request& request) const;

  DeviceRouter& devices_;
  kernels::TableCache& tables_;
  BufferPool& pool_;
};

// DeviceRotation: the way of a planned request whose tensors lie on a device. It passes no batcher:
// its order is that of the caller's stream.
//
//   plan -> a rectangle for each run of evenly spaced tokens -> kernels::DeviceExecutor
//
// Threading:  Thread-safe, if its parts are. Runs on the calling thread.
// Errors:     As DeviceExecutor. INVALID_ARGUMENT: no length of the table is known.
//             RESOURCE_EXHAUSTED: more than kDeviceJobsMax rectangles.

inline constexpr int64_t kDeviceJobsMax = 1024;

struct DeviceRotation {
  // Both must outlive it. Null: no calls for devices come here.
  kernels::DeviceExecutor* executor = nullptr;
  kernels::TableCache* tables = nullptr;  // of moves

  // Enqueues the plan. Returns the device's name. REQUIRES: plan.device.
  absl::StatusOr<std::string_view> Enqueue(const Plan& plan, const DeviceQueue& queue) const;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_ENGINE_EXECUTOR_H_
