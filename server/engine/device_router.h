// DeviceRouter: owns the server's backends and chooses the one that runs a batch.
//
// There is one backend, or a host backend and an accelerator, which then runs every batch. The host
// runs the batches that the accelerator cannot run (kNotBuilt: nothing has run, so also in place),
// and all later batches once the accelerator is lost.
//
// Threading:  Thread-safe, as the backends are.
// Errors:     Rotate: the backend's (backend.h).
#ifndef ROPE_SERVER_ENGINE_DEVICE_ROUTER_H_
#define ROPE_SERVER_ENGINE_DEVICE_ROUTER_H_

#include <atomic>
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

namespace rope::server {

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

}  // namespace rope::server

#endif  // ROPE_SERVER_ENGINE_DEVICE_ROUTER_H_
