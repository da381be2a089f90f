// DeviceRouter: the backends of a server and which of them runs a batch.
//
// One backend, or a host backend and an accelerator. Host memory goes to whichever is faster for
// its size: the accelerator from `accelerator_bytes_min` on, as measured by Calibrate. Once the
// accelerator has failed, everything goes to the host backend, what it failed on included.
//
// Threading:  Thread-safe, as the backends are.
// Errors:     INTERNAL: the device failed and nothing could take over (no host backend beside it,
//             or a rotation in place, whose input may be overwritten).
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
    std::string name;    // as replies and metrics say it
    std::string detail;  // for people
  };
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  // One backend for everything.
  explicit DeviceRouter(std::unique_ptr<kernels::Backend> host);
  DeviceRouter(std::unique_ptr<kernels::Backend> host,
               std::unique_ptr<kernels::Backend> accelerator, int64_t accelerator_bytes_min);

  // What --device asks for: "auto" (the accelerator where there is one and it is faster), or the
  // name of a backend, which must then be there. UNIMPLEMENTED, UNAVAILABLE: as CreateBackend.
  static absl::StatusOr<std::unique_ptr<DeviceRouter>> Create(
      const std::string& device, const kernels::BackendOptions& options, const Clock& clock);

  // A hint that this thread will soon rotate jobs of so many bytes.
  void PrepareFor(int64_t bytes);
  // Rotates all jobs on one device and returns its name, which lives as long as this.
  absl::StatusOr<std::string_view> Rotate(absl::Span<const kernels::RotateJob> jobs);

  // Whether there is no accelerator, so that what a rotation in place fails on needs no second try.
  bool host_alone() const { return accelerator_ == nullptr; }
  // What runs everything that the accelerator does not.
  kernels::Backend& host() const { return *host_; }
  std::vector<Device> list() const;
  // Where the accelerator takes over, in bytes; kNever where it does not.
  int64_t accelerator_bytes_min() const { return accelerator_bytes_min_; }

  // How many batches may run at the same time, each on its caller's thread, before the rest queues:
  // as many as a host backend of `threads` threads has cores for. A launch on an accelerator takes
  // about as long for many requests as for one.
  int direct_slots(int threads) const;
  // Up to which size one of them may: less where an accelerator has a use for batches.
  int64_t direct_bytes_max() const;

  // Called once, by the thread that saw it, when the accelerator fails. Set before the first
  // Rotate.
  using OnFault = std::function<void(std::string_view device, const absl::Status&)>;
  void set_on_fault(OnFault on_fault) { on_fault_ = std::move(on_fault); }

 private:
  bool TakesAccelerator(int64_t bytes) const;

  const std::unique_ptr<kernels::Backend> host_;
  const std::unique_ptr<kernels::Backend> accelerator_;  // may be null
  const int64_t accelerator_bytes_min_;
  OnFault on_fault_;
  std::atomic<bool> faulted_{false};
};

// The smallest measured size in bytes from which on `accelerator` is faster than `host` with host
// memory, staging included; DeviceRouter::kNever where it never is, or fails. Takes milliseconds.
int64_t Calibrate(kernels::Backend& host, kernels::Backend& accelerator, const Clock& clock);

}  // namespace rope::server

#endif  // ROPE_SERVER_ENGINE_DEVICE_ROUTER_H_
