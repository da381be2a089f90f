#include "rope/client.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "client/error.h"
#include "client/in_process.h"
#include "client/remote_connection.h"
#include "proto/wire/rope_config.h"

namespace rope::client {

const char* Name(ServingStatus status) {
  switch (status) {
    case ServingStatus::kServing:
      return "SERVING";
    case ServingStatus::kNotServing:
      return "NOT_SERVING";
    case ServingStatus::kUnknown:
      break;
  }
  return "UNKNOWN";
}

namespace {

constexpr char kInProcessTarget[] = "inproc:";
constexpr char kDefaultPort[] = ":50051";

// A target as people write it: "http://" goes, and a host without a port gets that of the server.
// Other schemes, such as "unix:" and "dns:", stay as they are.
Result<std::string> TargetOf(absl::string_view written) {
  if (absl::StartsWith(written, "https://")) {
    return InvalidField("target", written, "HOST:PORT or unix:PATH; TLS is not supported");
  }
  absl::string_view target = absl::StripPrefix(written, "http://");
  if (target.size() < written.size()) target = absl::StripSuffix(target, "/");
  if (target.empty()) return InvalidField("target", "nothing", "HOST:PORT or unix:PATH");
  // After the brackets of an IPv6 address.
  const size_t bracket = target.rfind(']');
  const size_t host_end = bracket == absl::string_view::npos ? 0 : bracket;
  if (absl::StrContains(target.substr(host_end), ':')) return std::string(target);
  return absl::StrCat(target, kDefaultPort);
}

std::atomic<InProcessConnect> in_process_connect = nullptr;

Result<Client> ConnectInProcess(const ConnectOptions& options) {
  const InProcessConnect connect = in_process_connect.load();
  if (connect == nullptr) {
    return MakeError(Reason::kWrongState, "target", kInProcessTarget,
                     "a call of rope::embedded::Enable before it");
  }
  Result<std::shared_ptr<Connection>> connection = connect(options);
  if (!connection.ok()) return connection.status();
  return Client(*std::move(connection));
}

}  // namespace

void SetInProcessConnect(InProcessConnect connect) {
  in_process_connect.store(connect);
}

Client::Client(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}

Result<Client> Client::Connect(const std::string& target, const ConnectOptions& options) {
  if (target == kInProcessTarget) return ConnectInProcess(options);
  const Result<std::string> read = TargetOf(target);
  if (!read.ok()) return read.status();
  const std::string& address = *read;
  const auto begin = std::chrono::steady_clock::now();
  auto connection = std::make_shared<RemoteConnection>(address, options);
  if (Status status = connection->Connect(options.timeout); !status.ok()) return status;
  Client client(std::move(connection));
  const auto elapsed = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - begin);
  // Leaves the health check some time in any case: its error says why there is no connection.
  const auto remaining = std::max(options.timeout - elapsed, std::chrono::milliseconds(100));
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
  return connection_->Rotate(request, options);
}

Result<PreparedRotation> Client::Prepare(const RotateRequest& request, const std::string& open_axis,
                                         const CallOptions& options) const {
  return connection_->Prepare(request, open_axis, options);
}

Call Client::RotateAsync(const RotateRequest& request, RotateCallback callback,
                         const CallOptions& options) const {
  return connection_->RotateAsync(request, std::move(callback), options);
}

std::future<Result<RotateReply>> Client::RotateFuture(const RotateRequest& request,
                                                      const CallOptions& options) const {
  auto promise = std::make_shared<std::promise<Result<RotateReply>>>();
  RotateAsync(
      request, [promise](Result<RotateReply> reply) { promise->set_value(std::move(reply)); },
      options);
  return promise->get_future();
}

Result<RotateStream> Client::OpenStream(const StreamOptions& options) const {
  Result<std::shared_ptr<StreamConnection>> stream = connection_->OpenStream(options);
  if (!stream.ok()) return stream.status();
  return RotateStream(*std::move(stream));
}

Arena Client::arena() const {
  return connection_->arena();
}

ChosenTransport Client::transport() const {
  return connection_->transport();
}

Result<ImportedMemory> Client::ImportMemory(const MemoryFile& file,
                                            const CallOptions& options) const {
  return connection_->ImportMemory(file, options);
}

Status Client::Fence(const CallOptions& options) const {
  return connection_->Fence(options);
}

Result<DescribeReply> Client::Describe(const DescribeRequest& request,
                                       const CallOptions& options) const {
  return connection_->Describe(request, options);
}

Result<std::string> Client::DescribeJson(const DescribeRequest& request,
                                         const CallOptions& options) const {
  const Result<DescribeReply> reply = Describe(request, options);
  if (!reply.ok()) return reply.status();
  return ToJson(*reply);
}

Result<std::string> ToJson(const DescribeReply& reply) {
  google::protobuf::util::JsonPrintOptions print;
  print.add_whitespace = true;
  print.preserve_proto_field_names = true;
  print.always_print_primitive_fields = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(proto::WriteDescribeReply(reply), &json, print)
           .ok()) {
    return Status(StatusCode::kInternal, "reply: got text that is not UTF-8");
  }
  return json;
}

Result<TablesReply> Client::GetTables(const TablesRequest& request,
                                      const CallOptions& options) const {
  return connection_->GetTables(request, options);
}

Result<std::vector<Model>> Client::ListModels(const CallOptions& options) const {
  return connection_->ListModels(options);
}

Result<RegisteredModel> Client::RegisterModel(const std::string& name, const RopeSpec& rope,
                                              const CallOptions& options) const {
  return connection_->RegisterModel(name, rope, options);
}

Status Client::UnregisterModel(const std::string& name, const CallOptions& options) const {
  return connection_->UnregisterModel(name, options);
}

Result<WarmUpReply> Client::WarmUp(const WarmUpRequest& request, const CallOptions& options) const {
  return connection_->WarmUp(request, options);
}

Result<std::vector<SharedRegion>> Client::ListRegions(const CallOptions& options) const {
  return connection_->ListRegions(options);
}

Result<ConnectionList> Client::ListConnections(const CallOptions& options) const {
  return connection_->ListConnections(options);
}

Result<ServerInfo> Client::GetServerInfo(const CallOptions& options) const {
  return connection_->GetServerInfo(options);
}

Result<ServingStatus> Client::Health(const std::string& service, const CallOptions& options) const {
  return connection_->Health(service, options);
}

}  // namespace rope::client
