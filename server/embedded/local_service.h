// LocalService: the rope.v1 service in this process. A call is a message and its answer, as over
// gRPC, but nothing is sent; a rotation has no bytes, and its tensors are named by their addresses
// (proto/ipc/process_memory.h).
//
// Threading:  Thread-safe. A call runs on the calling thread as far as the engine runs it at once;
//             else the thread waits.
// Ownership:  When a call returns, nothing uses the memory that its message names.
// Errors:     As the methods of the service.
#ifndef ROPE_SERVER_EMBEDDED_LOCAL_SERVICE_H_
#define ROPE_SERVER_EMBEDDED_LOCAL_SERVICE_H_

#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/codec/codec.h"
#include "rope/device.h"
#include "rope/embedded.h"
#include "rope/rotate.h"
#include "rope/status.h"
#include "server/clock.h"
#include "server/core.h"
#include "server/telemetry/metrics.h"

namespace rope::embedded {

class LocalService {
 public:
  // Set when the caller no longer wants the answer. Never null.
  using Cancelled = std::shared_ptr<std::atomic<bool>>;

  static Result<std::shared_ptr<LocalService>> Create(const Options& options);
  // REQUIRES: no call is under way.
  ~LocalService();
  LocalService(const LocalService&) = delete;
  LocalService& operator=(const LocalService&) = delete;

  // `message` is cleared. After `timeout` it sets `cancelled`, and returns DEADLINE_EXCEEDED once
  // the engine has ended the call. An allocation that fails where no error can be returned ends the
  // process, as in a server. REQUIRES: `method` is unary.
  Result<grpc::ByteBuffer> Call(server::Method method, grpc::ByteBuffer& message,
                                absl::Duration timeout, const Cancelled& cancelled) noexcept;

  // The same for a rotation, whose message and answer are never bytes.
  // With a queue its tensors lie on that device, and it ends when it is enqueued there.
  Result<client::RotateReply> Rotate(client::CallMessage message,
                                     std::vector<client::WantedTensor> wanted,
                                     absl::Duration timeout, const Cancelled& cancelled,
                                     const DeviceQueue* queue = nullptr) noexcept;

  // The ids under which messages name the memory of this process, and of its devices.
  uint64_t region_id() const { return region_id_; }
  uint64_t device_region_id() const { return device_region_id_; }
  // Whether the engine's health would know the service.
  bool HasService(const std::string& name) const;

 private:
  LocalService() = default;
  absl::Status Build(const Options& options);
  void RunWhatIsLeft();

  const server::SteadyClock clock_{};
  std::unique_ptr<server::Core> core_;
  std::unique_ptr<server::Connection> connection_;  // of all clients of this engine
  uint64_t region_id_ = 0;
  uint64_t device_region_id_ = 0;
};

}  // namespace rope::embedded

#endif  // ROPE_SERVER_EMBEDDED_LOCAL_SERVICE_H_
