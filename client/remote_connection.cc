#include "client/remote_connection.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/codec/control_messages.h"
#include "client/codec/health_messages.h"
#include "client/codec/message_call.h"
#include "client/codec/messages.h"
#include "client/codec/preparation.h"
#include "client/error.h"

namespace rope::client {
namespace {

Result<grpc::ByteBuffer> CallMethod(const CallRunner& calls, const char* method,
                                    const google::protobuf::Message& request,
                                    const CallOptions& options, bool idempotent = true) {
  return calls.Call(RopeMethod(method), BytesOf(request), idempotent, options);
}

// Calls `method` with `request`, unless that is an error, and converts the reply.
template <typename Reply, typename Message, typename Request>
Result<Reply> CallAndConvert(const CallRunner& calls, const char* method,
                             const Result<Request>& request, const CallOptions& options,
                             bool idempotent = true) {
  if (!request.ok()) return request.status();
  const Result<Message> reply =
      MessageOf<Message>(CallMethod(calls, method, *request, options, idempotent));
  if (!reply.ok()) return reply.status();
  return FromMessage(*reply);
}

}  // namespace

Arena RemoteConnection::arena() {
  return Arena(calls_.connector().arena());
}

ChosenTransport RemoteConnection::transport() {
  return calls_.connector().transport();
}

Result<RotateReply> RemoteConnection::Rotate(const RotateRequest& request,
                                             const CallOptions& options) {
  return calls_.Rotate(request, options);
}

Result<PreparedRotation> RemoteConnection::Prepare(const RotateRequest& request,
                                                   const std::string& open_axis,
                                                   const CallOptions& options) {
  auto preparation = PreparationOf(request, open_axis);
  if (!preparation.ok()) return preparation.status();
  const Result<grpc::ByteBuffer> message = (*preparation)->Message();
  if (!message.ok()) return message.status();
  auto prepared = ReadPrepared(*preparation, calls_.Call(RopeMethod("Prepare"), *message,
                                                         /*idempotent=*/true, options));
  if (!prepared.ok()) return prepared.status();
  return PreparedState::RotationOf(*std::move(prepared));
}

Call RemoteConnection::RotateAsync(const RotateRequest& request, RotateCallback callback,
                                   const CallOptions& options) {
  const std::weak_ptr<AsyncCall> started =
      calls_.StartRotate(request, std::move(callback), options);
  return Call([started] {
    if (const auto call = started.lock()) call->Cancel();
  });
}

Result<std::shared_ptr<StreamConnection>> RemoteConnection::OpenStream(
    const StreamOptions& options) {
  if (options.requests_max <= 0 || options.bytes_max <= 0) {
    return Status(StatusCode::kInvalidArgument,
                  absl::StrCat("requests_max, bytes_max: got ", options.requests_max, " and ",
                               options.bytes_max, ", want more than 0"));
  }
  Result<std::shared_ptr<StreamCall>> stream = calls_.OpenStream(options);
  if (!stream.ok()) return stream.status();
  return std::shared_ptr<StreamConnection>(*std::move(stream));
}

Status RemoteConnection::Fence(const CallOptions& options) {
  return calls_.Fence(options);
}

Result<DescribeReply> RemoteConnection::Describe(const DescribeRequest& request,
                                                 const CallOptions& options) {
  return CallAndConvert<DescribeReply, v1::DescribeResponse>(calls_, "Describe", ToMessage(request),
                                                             options);
}

Result<TablesReply> RemoteConnection::GetTables(const TablesRequest& request,
                                                const CallOptions& options) {
  return CallAndConvert<TablesReply, v1::GetTablesResponse>(calls_, "GetTables", ToMessage(request),
                                                            options);
}

Result<std::vector<Model>> RemoteConnection::ListModels(const CallOptions& options) {
  std::vector<Model> models;
  v1::ListModelsRequest request;
  do {
    const auto reply =
        MessageOf<v1::ListModelsResponse>(CallMethod(calls_, "ListModels", request, options));
    if (!reply.ok()) return reply.status();
    std::vector<Model> page = FromMessage(*reply);
    std::move(page.begin(), page.end(), std::back_inserter(models));
    request.set_page_token(reply->next_page_token());
  } while (!request.page_token().empty());
  return models;
}

Result<RegisteredModel> RemoteConnection::RegisterModel(const std::string& name,
                                                        const RopeSpec& rope,
                                                        const CallOptions& options) {
  return CallAndConvert<RegisteredModel, v1::RegisterModelResponse>(
      calls_, "RegisterModel", ToMessage(name, rope), options, /*idempotent=*/false);
}

Status RemoteConnection::UnregisterModel(const std::string& name, const CallOptions& options) {
  v1::UnregisterModelRequest request;
  request.set_name(name);
  return CallMethod(calls_, "UnregisterModel", request, options, /*idempotent=*/false).status();
}

Result<WarmUpReply> RemoteConnection::WarmUp(const WarmUpRequest& request,
                                             const CallOptions& options) {
  return CallAndConvert<WarmUpReply, v1::WarmUpResponse>(calls_, "WarmUp", ToMessage(request),
                                                         options);
}

Result<std::vector<SharedRegion>> RemoteConnection::ListRegions(const CallOptions& options) {
  return CallAndConvert<std::vector<SharedRegion>, v1::ListRegionsResponse>(
      calls_, "ListRegions", Result<v1::ListRegionsRequest>(v1::ListRegionsRequest()), options);
}

Result<ServerInfo> RemoteConnection::GetServerInfo(const CallOptions& options) {
  return CallAndConvert<ServerInfo, v1::GetServerInfoResponse>(
      calls_, "GetServerInfo", Result<v1::GetServerInfoRequest>(v1::GetServerInfoRequest()),
      options);
}

Result<ServingStatus> RemoteConnection::Health(const std::string& service,
                                               const CallOptions& options) {
  return ServingStatusOf(calls_.Call("/grpc.health.v1.Health/Check", HealthRequestOf(service),
                                     /*idempotent=*/true, options));
}

}  // namespace rope::client
