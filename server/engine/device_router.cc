#include "server/engine/device_router.h"

#include "absl/strings/str_cat.h"
#include "kernels/backends.h"
#include "kernels/status_macros.h"
#include "proto/error.h"

namespace rope::server {

DeviceRouter::DeviceRouter(std::unique_ptr<kernels::Backend> host,
                           std::unique_ptr<kernels::Backend> accelerator)
    : host_(std::move(host)), accelerator_(std::move(accelerator)) {}

absl::StatusOr<std::unique_ptr<DeviceRouter>> DeviceRouter::Create(
    const std::string& device, const kernels::BackendOptions& options) {
  const bool is_cuda = device == "cuda";
  ROPE_ASSIGN_OR_RETURN(
      auto host, kernels::CreateBackend(is_cuda || device == "auto" ? "cpu" : device, options));
  std::unique_ptr<kernels::Backend> accelerator;
  if (is_cuda) {
    ROPE_ASSIGN_OR_RETURN(accelerator, kernels::CreateBackend(device, options));
  }
  return std::make_unique<DeviceRouter>(std::move(host), std::move(accelerator));
}

absl::StatusOr<std::string_view> DeviceRouter::Rotate(absl::Span<const kernels::RotateJob> jobs) {
  if (accelerator_ != nullptr && !faulted_.load(std::memory_order_relaxed)) {
    const absl::Status status = accelerator_->Rotate(jobs);
    if (status.ok()) return accelerator_->name();
    const proto::Reason reason = proto::PartsOf(status).reason;
    if (reason == proto::Reason::kDeviceFault && !faulted_.exchange(true) && on_fault_) {
      on_fault_(accelerator_->name(), status);
    }
    if (reason != proto::Reason::kNotBuilt) return status;
  }
  ROPE_RETURN_IF_ERROR(host_->Rotate(jobs));
  return host_->name();
}

std::vector<DeviceRouter::Device> DeviceRouter::list() const {
  std::vector<Device> devices;
  if (accelerator_ != nullptr) {
    std::string detail = accelerator_->detail();
    if (faulted_.load(std::memory_order_relaxed)) {
      absl::StrAppend(&detail, "; failed, not used any more");
    }
    devices.push_back({std::string(accelerator_->name()), detail});
  }
  devices.push_back({std::string(host_->name()), host_->detail()});
  return devices;
}

}  // namespace rope::server
