// DeviceRouter: owns the server's backends and chooses the one that runs a batch.
//
// There is one backend, or a host backend and an accelerator. Batches of at least
// `accelerator_bytes_min` bytes go to the accelerator, which Calibrate measured to be faster from
// that size on; an accelerator that is never faster is destroyed, which gives its device back.
// When a batch fails there, its class decides (backend.h):
//   short of memory, refused: this batch goes to the host
//   cannot run it:            this batch goes to the host, also in place, because nothing has run
//   the device is lost:       this batch and all later ones go to the host
//
// Threading:  Thread-safe, as the backends are.
// Errors:     INTERNAL, kDeviceFault: the device failed, and no other backend could run a job of
//             the batch: there is no accelerator and host pair, or the job rotates in place and its
//             input may be overwritten, or the host cannot reach a tensor.
#ifndef ROPE_SERVER_ENGINE_DEVICE_ROUTER_H_
#define ROPE_SERVER_ENGINE_DEVICE_ROUTER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend/backend.h"
#include "server/clock.h"

namespace rope::server {

class DeviceRouter {
 public:
  struct Device {
    std::string name;    // as in replies and metrics
    std::string detail;  // for humans
  };
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  // One backend for everything.
  explicit DeviceRouter(std::unique_ptr<kernels::Backend> host);
  DeviceRouter(std::unique_ptr<kernels::Backend> host,
               std::unique_ptr<kernels::Backend> accelerator, int64_t accelerator_bytes_min);

  // Creates the backends for --device: "auto" (the accelerator if there is one, for the sizes for
  // which it is faster), or the name of a backend, which must exist. UNIMPLEMENTED, UNAVAILABLE: as
  // CreateBackend.
  static absl::StatusOr<std::unique_ptr<DeviceRouter>> Create(
      const std::string& device, const kernels::BackendOptions& options, const Clock& clock);

  // Rotates all jobs on one device and returns its name, which lives as long as the router.
  absl::StatusOr<std::string_view> Rotate(absl::Span<const kernels::RotateJob> jobs);

  // Runs some jobs of a batch whose Rotate has failed on the host, from the same inputs. Returns
  // `failure` if that is not possible.
  absl::StatusOr<std::string_view> RotateAgain(absl::Span<const kernels::RotateJob> jobs,
                                               const absl::Status& failure);

  // The backend for all batches that the accelerator does not run.
  kernels::Backend& host() const { return *host_; }
  // The accelerator's (backend.h); null without one.
  std::shared_ptr<kernels::HostMemory> host_memory() const;
  std::vector<Device> list() const;
  // The smallest batch for the accelerator, in bytes; kNever if it runs none. Smaller requests may
  // overwrite their inputs. From this size on inputs are kept, for RotateAgain.
  int64_t accelerator_bytes_min() const { return accelerator_bytes_min_; }

  // How many direct batches may run at the same time, each on its caller's thread: `threads`, the
  // threads of the host backend. One if the accelerator takes small batches: a launch takes about
  // as long for many requests as for one.
  int direct_slots(int threads) const;
  // Whether small requests should always gather (Batcher::Options), for the same reason.
  bool gathers_always() const;
  // The largest direct batch. An accelerator gains from batching.
  int64_t direct_bytes_max() const;

  // Called once, when the accelerator is lost, on the thread that saw the failure. Set it before
  // the first Rotate.
  using OnFault = std::function<void(std::string_view device, const absl::Status&)>;
  void set_on_fault(OnFault on_fault) { on_fault_ = std::move(on_fault); }

 private:
  bool TakesAccelerator(int64_t bytes) const;
  void NoteFailure(const absl::Status& status);

  const std::unique_ptr<kernels::Backend> host_;
  Device idle_;                                    // an accelerator that was given back
  std::unique_ptr<kernels::Backend> accelerator_;  // may be null
  const int64_t accelerator_bytes_min_;
  OnFault on_fault_;
  std::atomic<bool> faulted_{false};
};

// Returns the smallest measured size in bytes from which on `accelerator` is faster than `host`
// with tensors in host memory, staging included. DeviceRouter::kNever: never faster, or it fails.
// Takes milliseconds.
int64_t Calibrate(kernels::Backend& host, kernels::Backend& accelerator, const Clock& clock);

}  // namespace rope::server

#endif  // ROPE_SERVER_ENGINE_DEVICE_ROUTER_H_
