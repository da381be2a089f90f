#include "rope/client.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/calls/connection.h"
#include "client/codec/control_messages.h"
#include "client/codec/health_messages.h"
#include "client/codec/message_call.h"
#include "client/codec/messages.h"
#include "client/codec/preparation.h"
#include "client/error.h"

namespace rope::client {
namespace {

template <typename Reply>
Result<Reply> CallMessage(const Connection& connection, const std::string& method,
                          const google::protobuf::Message& request, const CallOptions& options) {
  return MessageOf<Reply>(connection.Call(method, BytesOf(request), /*idempotent=*/true, options));
}

Result<v1::DescribeResponse> CallDescribe(const Connection& connection,
                                          const DescribeRequest& request,
                                          const CallOptions& options) {
  const Result<v1::DescribeRequest> message = ToMessage(request);
  if (!message.ok()) return message.status();
  return CallMessage<v1::DescribeResponse>(connection, "/rope.v1.RopeService/Describe", *message,
                                           options);
}

Result<std::string> JsonOf(const v1::DescribeResponse& message) {
  google::protobuf::util::JsonPrintOptions print;
  print.add_whitespace = true;
  print.preserve_proto_field_names = true;
  print.always_print_primitive_fields = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(message, &json, print).ok()) {
    return Status(StatusCode::kInternal, "reply: got text that is not UTF-8");
  }
  return json;
}

}  // namespace

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

const char* Name(Pairing pairing) {
  switch (pairing) {
    case Pairing::kHalf:
      return "half";
    case Pairing::kInterleaved:
      return "interleaved";
    case Pairing::kUnspecified:
      break;
  }
  return "unspecified";
}

Client::Client(std::shared_ptr<const Connection> connection) : connection_(std::move(connection)) {}

Result<Client> Client::Connect(const std::string& target, const ConnectOptions& options) {
  if (target.empty()) {
    return Status(StatusCode::kInvalidArgument, "target: got nothing, want HOST:PORT or unix:PATH");
  }
  const auto begin = std::chrono::steady_clock::now();
  auto connection = std::make_shared<Connection>(target, options);
  if (Status status = connection->Connect(options.timeout); !status.ok()) return status;
  Client client(std::move(connection));
  const auto elapsed = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - begin);
  // Leaves the health check some time in any case: its error says why there is no connection.
  const auto remaining = std::max(options.timeout - elapsed, std::chrono::milliseconds(100));
  const Result<ServingStatus> health = client.Health({}, {.timeout = remaining});
  if (!health.ok()) {
    return Status(health.status().code(), absl::StrCat(target, ": ", health.status().message()),
                  health.status().detail());
  }
  if (options.require_serving && *health != ServingStatus::kServing) {
    return MakeError(Reason::kDraining, absl::StrCat(target, ": health"), Name(*health), "SERVING");
  }
  return client;
}

Result<RotateReply> Client::Rotate(const RotateRequest& request, const CallOptions& options) const {
  return connection_->Rotate(request, options);
}

Result<PreparedRotation> Client::Prepare(const RotateRequest& request, const std::string& open_axis,
                                         const CallOptions& options) const {
  if (request.prepared.has_value()) {
    return InvalidField("prepared", "a prepared rotation", "a whole request");
  }
  if (request.rows.has_value()) return InvalidField("rows", "a table", "none");
  auto preparation = Preparation::Create(request, open_axis);
  if (!preparation.ok()) return preparation.status();
  const Result<grpc::ByteBuffer> message = (*preparation)->Message();
  if (!message.ok()) return message.status();
  auto prepared =
      ReadPrepared(*preparation, connection_->Call("/rope.v1.RopeService/Prepare", *message,
                                                   /*idempotent=*/true, options));
  if (!prepared.ok()) return prepared.status();
  return PreparedState::RotationOf(*std::move(prepared));
}

Call Client::RotateAsync(const RotateRequest& request, RotateCallback callback,
                         const CallOptions& options) const {
  return Call(connection_->StartRotate(request, std::move(callback), options));
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
  if (options.requests_max <= 0 || options.bytes_max <= 0) {
    return Status(StatusCode::kInvalidArgument,
                  absl::StrCat("requests_max, bytes_max: got ", options.requests_max, " and ",
                               options.bytes_max, ", want more than 0"));
  }
  Result<std::shared_ptr<StreamCall>> stream = connection_->OpenStream(options);
  if (!stream.ok()) return stream.status();
  return RotateStream(*std::move(stream));
}

Arena Client::arena() const {
  return Arena(connection_->connector().arena());
}

ChosenTransport Client::transport() const {
  return connection_->connector().transport();
}

Result<DescribeReply> Client::Describe(const DescribeRequest& request,
                                       const CallOptions& options) const {
  const Result<v1::DescribeResponse> reply = CallDescribe(*connection_, request, options);
  if (!reply.ok()) return reply.status();
  return FromMessage(*reply);
}

Result<std::string> Client::DescribeJson(const DescribeRequest& request,
                                         const CallOptions& options) const {
  const Result<v1::DescribeResponse> reply = CallDescribe(*connection_, request, options);
  if (!reply.ok()) return reply.status();
  return JsonOf(*reply);
}

Result<std::string> ToJson(const DescribeReply& reply) {
  return JsonOf(ToMessage(reply));
}

Status Client::Fence(const CallOptions& options) const {
  return connection_->Fence(options);
}

Result<std::vector<Model>> Client::ListModels(const CallOptions& options) const {
  std::vector<Model> models;
  v1::ListModelsRequest request;
  do {
    const auto reply = CallMessage<v1::ListModelsResponse>(
        *connection_, "/rope.v1.RopeService/ListModels", request, options);
    if (!reply.ok()) return reply.status();
    std::vector<Model> page = FromMessage(*reply);
    std::move(page.begin(), page.end(), std::back_inserter(models));
    request.set_page_token(reply->next_page_token());
  } while (!request.page_token().empty());
  return models;
}

Result<TablesReply> Client::GetTables(const TablesRequest& request,
                                      const CallOptions& options) const {
  const Result<v1::GetTablesRequest> message = ToMessage(request);
  if (!message.ok()) return message.status();
  const auto reply = CallMessage<v1::GetTablesResponse>(
      *connection_, "/rope.v1.RopeService/GetTables", *message, options);
  if (!reply.ok()) return reply.status();
  return FromMessage(*reply);
}

Result<RegisteredModel> Client::RegisterModel(const std::string& name, const RopeSpec& rope,
                                              const CallOptions& options) const {
  const Result<v1::RegisterModelRequest> message = ToMessage(name, rope);
  if (!message.ok()) return message.status();
  const auto reply = MessageOf<v1::RegisterModelResponse>(
      connection_->Call("/rope.v1.RopeService/RegisterModel", BytesOf(*message),
                        /*idempotent=*/false, options));
  if (!reply.ok()) return reply.status();
  return FromMessage(*reply);
}

Status Client::UnregisterModel(const std::string& name, const CallOptions& options) const {
  v1::UnregisterModelRequest message;
  message.set_name(name);
  return connection_
      ->Call("/rope.v1.RopeService/UnregisterModel", BytesOf(message), /*idempotent=*/false,
             options)
      .status();
}

Result<WarmUpReply> Client::WarmUp(const WarmUpRequest& request, const CallOptions& options) const {
  const Result<v1::WarmUpRequest> message = ToMessage(request);
  if (!message.ok()) return message.status();
  const auto reply = CallMessage<v1::WarmUpResponse>(*connection_, "/rope.v1.RopeService/WarmUp",
                                                     *message, options);
  if (!reply.ok()) return reply.status();
  return FromMessage(*reply);
}

Result<std::vector<SharedRegion>> Client::ListRegions(const CallOptions& options) const {
  const auto reply = CallMessage<v1::ListRegionsResponse>(
      *connection_, "/rope.v1.RopeService/ListRegions", v1::ListRegionsRequest(), options);
  if (!reply.ok()) return reply.status();
  return FromMessage(*reply);
}

Result<ServerInfo> Client::GetServerInfo(const CallOptions& options) const {
  const auto reply = CallMessage<v1::GetServerInfoResponse>(
      *connection_, "/rope.v1.RopeService/GetServerInfo", v1::GetServerInfoRequest(), options);
  if (!reply.ok()) return reply.status();
  return FromMessage(*reply);
}

Result<ServingStatus> Client::Health(const std::string& service, const CallOptions& options) const {
  return ServingStatusOf(connection_->Call("/grpc.health.v1.Health/Check", HealthRequestOf(service),
                                           /*idempotent=*/true, options));
}

}  // namespace rope::client
