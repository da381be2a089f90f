#include "rope/client.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/codec/messages.h"
#include "client/error.h"
#include "client/message_connection.h"
#include "client/remote_connection.h"
#include "client/transport/channel.h"
#include "client/transport/fork.h"
#include "client/transport/waiter.h"
#include "kernels/status_macros.h"
#include "proto/wire/rope_config.h"

namespace rope::client {

const char* Name(ServingStatus status) {
  constexpr const char* kNames[] = {"UNKNOWN", "SERVING", "NOT_SERVING"};
  return kNames[static_cast<size_t>(status)];
}

namespace {

constexpr char kInProcessTarget[] = "inproc:";

std::atomic<InProcessConnect> in_process_connect = nullptr;

Result<Client> ConnectInProcess(const ConnectOptions& options) {
  const InProcessConnect connect = in_process_connect.load();
  if (connect == nullptr) {
    return MakeError(Reason::kWrongState, "target", kInProcessTarget,
                     "a call of rope::embedded::Enable before it");
  }
  ROPE_ASSIGN_OR_RETURN(std::shared_ptr<Connection> connection, connect(options));
  return Client(std::move(connection));
}

}  // namespace

void SetInProcessConnect(InProcessConnect connect) {
  in_process_connect.store(connect);
}

Client::Client(std::shared_ptr<Connection> connection)
    : connection_(DestroyedHereOnly(std::move(connection))), forks_(ForkCount()) {}

bool Client::is_of_parent() const {
  return forks_ != ForkCount();
}

Result<Client> Client::Connect(const std::string& target, const ConnectOptions& options) {
  if (target == kInProcessTarget) return ConnectInProcess(options);
  ROPE_ASSIGN_OR_RETURN(const std::string address, ReadTarget(target));
  ROPE_RETURN_IF_ERROR(NoteConnect());
  const auto timeout = BoundedTimeout(options.timeout);
  const auto begin = std::chrono::steady_clock::now();
  ConnectOptions secured = options;
  secured.tls.enabled = options.tls.enabled || AsksForTls(target);
  auto connection = std::make_shared<RemoteConnection>(address, secured);
  ROPE_RETURN_IF_ERROR(connection->Connect(timeout));
  Client client(std::move(connection));
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      begin + timeout - std::chrono::steady_clock::now());
  // Leaves the health check some time in any case: its error says why there is no connection.
  const auto remaining = std::max(left, std::chrono::milliseconds(100));
  const Result<ServingStatus> health = client.Health({}, {.timeout = remaining});
  if (!health.ok()) {
    return Status(health.status().code(), absl::StrCat(address, ": ", health.status().message()),
                  health.status().detail());
  }
  if (options.require_serving && *health != ServingStatus::kServing) {
    return MakeError(Reason::kDraining, absl::StrCat(address, ": health"), Name(*health),
                     "SERVING");
  }
  return client;
}

Result<RotateReply> Client::Rotate(const RotateRequest& request, const CallOptions& options) const {
  return is_of_parent() ? MadeByParent() : connection_->Rotate(request, options);
}

Result<PreparedRotation> Client::Prepare(const RotateRequest& request, const std::string& open_axis,
                                         const CallOptions& options) const {
  return is_of_parent() ? MadeByParent() : connection_->Prepare(request, open_axis, options);
}

Result<PreparedRotation> Client::PrepareJson(const std::string& request,
                                             const CallOptions& options) const {
  return is_of_parent() ? MadeByParent() : connection_->PrepareJson(request, options);
}

Result<RotateReply> Client::Enqueue(const RotateRequest& request, const DeviceQueue& queue) const {
  return is_of_parent() ? MadeByParent() : connection_->Enqueue(request, queue);
}

Result<RotateReply> Connection::Enqueue(const RotateRequest& /*request*/,
                                        const DeviceQueue& /*queue*/) {
  return MakeError(Reason::kNotBuilt, "Enqueue", "a connection to a server",
                   "an engine in this process: inproc:, or rope::embedded");
}

Call Client::RotateAsync(const RotateRequest& request, RotateCallback callback,
                         const CallOptions& options) const {
  if (is_of_parent()) {
    callback(MadeByParent());
    return Call();
  }
  const Call call = connection_->RotateAsync(request, std::move(callback), options);
  return Call([call, forks = forks_] {
    if (forks == ForkCount()) call.Cancel();
  });
}

std::future<Result<RotateReply>> Client::RotateFuture(const RotateRequest& request,
                                                      const CallOptions& options) const {
  auto promise = std::make_shared<std::promise<Result<RotateReply>>>();
  RotateAsync(
      request, [promise](Result<RotateReply> reply) { promise->set_value(std::move(reply)); },
      options);
  return promise->get_future();
}

Arena Client::arena() const {
  if (is_of_parent()) return Arena::CreateLocal(0).value();
  return connection_->arena();
}

ChosenTransport Client::transport() const {
  if (is_of_parent()) return {Transport::kInline, MadeByParent().message()};
  return connection_->transport();
}

Result<ImportedMemory> Client::ImportMemory(const MemoryFile& file,
                                            const CallOptions& options) const {
  return is_of_parent() ? MadeByParent() : connection_->ImportMemory(file, options);
}

Status Client::Fence(const CallOptions& options) const {
  return is_of_parent() ? MadeByParent() : connection_->Fence(options);
}

Result<DescribeReply> Client::Describe(const DescribeRequest& request,
                                       const CallOptions& options) const {
  return is_of_parent() ? MadeByParent() : connection_->Describe(request, options);
}

Result<std::string> Client::DescribeJson(const DescribeRequest& request,
                                         const CallOptions& options) const {
  ROPE_ASSIGN_OR_RETURN(const DescribeReply reply, Describe(request, options));
  return ToJson(reply);
}

Result<std::string> ToJson(const DescribeReply& reply) {
  return ToJson(proto::WriteDescribeReply(reply));
}

Result<std::string> Client::CallJson(const std::string& method, const std::string& request,
                                     const CallOptions& options) const {
  return is_of_parent() ? MadeByParent() : connection_->CallJson(method, request, options);
}

Result<TablesReply> Client::GetTables(const TablesRequest& request,
                                      const CallOptions& options) const {
  return is_of_parent() ? MadeByParent() : connection_->GetTables(request, options);
}

Result<ServingStatus> Client::Health(const std::string& service, const CallOptions& options) const {
  return is_of_parent() ? MadeByParent() : connection_->Health(service, options);
}

}  // namespace rope::client
