#include "client/message_connection.h"

#include <google/protobuf/message.h>

#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "client/codec/control_messages.h"
#include "client/codec/json.h"
#include "client/codec/message_call.h"
#include "client/codec/messages.h"
#include "client/codec/preparation.h"
#include "client/error.h"

namespace rope::client {

Result<PreparedRotation> MessageConnection::Prepare(const RotateRequest& request,
                                                    const std::string& open_axis,
                                                    const CallOptions& options) {
  return Prepare(PreparationOf(request, open_axis), options);
}

Result<PreparedRotation> MessageConnection::PrepareJson(const std::string& request,
                                                        const CallOptions& options) {
  v1::PrepareRequest message;
  if (Status status = FromJson(request, message); !status.ok()) return status;
  return Prepare(Preparation::Create(std::move(message)), options);
}

Result<PreparedRotation> MessageConnection::Prepare(
    const Result<std::shared_ptr<const Preparation>>& preparation, const CallOptions& options) {
  if (!preparation.ok()) return preparation.status();
  auto prepared =
      ReadPrepared(*preparation, CallMethod("Prepare", BytesOf((*preparation)->message()),
                                            /*idempotent=*/true, options));
  if (!prepared.ok()) return prepared.status();
  return PreparedState::RotationOf(*std::move(prepared));
}

namespace {

std::unique_ptr<google::protobuf::Message> NewMessage(const google::protobuf::Descriptor* type) {
  auto* const factory = google::protobuf::MessageFactory::generated_factory();
  return std::unique_ptr<google::protobuf::Message>(factory->GetPrototype(type)->New());
}

}  // namespace

Result<std::string> MessageConnection::CallJson(const std::string& method,
                                                const std::string& request,
                                                const CallOptions& options) {
  const auto* found = v1::GetServerInfoRequest::descriptor()
                          ->file()
                          ->FindServiceByName("RopeService")
                          ->FindMethodByName(method);
  if (found == nullptr || found->client_streaming()) {
    return InvalidField("method", method, "a unary method of rope.v1.RopeService");
  }
  const auto message = NewMessage(found->input_type());
  if (Status status = FromJson(request, *message); !status.ok()) return status;
  // Rotations may be in place, and a region is registered once.
  const bool idempotent = method != "Rotate" && !absl::EndsWith(method, "Region");
  const auto answer = NewMessage(found->output_type());
  Status status =
      ReadMessage(CallMethod(method.c_str(), BytesOf(*message), idempotent, options), *answer);
  if (!status.ok()) return status;
  return ToJson(*answer);
}

template <typename Reply, typename Message, typename Request>
Result<Reply> MessageConnection::CallAndConvert(const char* method, const Result<Request>& request,
                                                const CallOptions& options, bool idempotent) {
  if (!request.ok()) return request.status();
  const Result<Message> reply =
      MessageOf<Message>(CallMethod(method, BytesOf(*request), idempotent, options));
  if (!reply.ok()) return reply.status();
  return FromMessage(*reply);
}

Result<DescribeReply> MessageConnection::Describe(const DescribeRequest& request,
                                                  const CallOptions& options) {
  return CallAndConvert<DescribeReply, v1::DescribeResponse>("Describe", ToMessage(request),
                                                             options);
}

Result<FingerprintReply> MessageConnection::Fingerprint(const FingerprintRequest& request,
                                                        const CallOptions& options) {
  return CallAndConvert<FingerprintReply, v1::FingerprintResponse>("Fingerprint",
                                                                   ToMessage(request), options);
}

Result<TablesReply> MessageConnection::GetTables(const TablesRequest& request,
                                                 const CallOptions& options) {
  return CallAndConvert<TablesReply, v1::GetTablesResponse>("GetTables", ToMessage(request),
                                                            options);
}

// Hands every page of a list to `take`.
template <typename Request, typename Response, typename Take>
Status MessageConnection::EachPage(const char* method, const CallOptions& options,
                                   const Take& take) {
  Request request;
  do {
    const auto page =
        MessageOf<Response>(CallMethod(method, BytesOf(request), /*idempotent=*/true, options));
    if (!page.ok()) return page.status();
    take(*page);
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return {};
}

Result<std::vector<Model>> MessageConnection::ListModels(const CallOptions& options) {
  std::vector<Model> models;
  const Status status = EachPage<v1::ListModelsRequest, v1::ListModelsResponse>(
      "ListModels", options, [&models](const v1::ListModelsResponse& message) {
        std::vector<Model> page = FromMessage(message);
        std::move(page.begin(), page.end(), std::back_inserter(models));
      });
  if (!status.ok()) return status;
  return models;
}

Result<RegisteredModel> MessageConnection::RegisterModel(const std::string& name,
                                                         const RopeSpec& rope,
                                                         const CallOptions& options) {
  return CallAndConvert<RegisteredModel, v1::RegisterModelResponse>(
      "RegisterModel", ToMessage(name, rope), options, /*idempotent=*/false);
}

Status MessageConnection::UnregisterModel(const std::string& name, const CallOptions& options) {
  v1::UnregisterModelRequest request;
  request.set_name(name);
  return CallMethod("UnregisterModel", BytesOf(request), /*idempotent=*/false, options).status();
}

Result<WarmUpReply> MessageConnection::WarmUp(const WarmUpRequest& request,
                                              const CallOptions& options) {
  return CallAndConvert<WarmUpReply, v1::WarmUpResponse>("WarmUp", ToMessage(request), options);
}

Result<std::vector<SharedRegion>> MessageConnection::ListRegions(const CallOptions& options) {
  return CallAndConvert<std::vector<SharedRegion>, v1::ListRegionsResponse>(
      "ListRegions", Result<v1::ListRegionsRequest>(v1::ListRegionsRequest()), options);
}

Result<ConnectionList> MessageConnection::ListConnections(const CallOptions& options) {
  ConnectionList list;
  const Status status = EachPage<v1::ListConnectionsRequest, v1::ListConnectionsResponse>(
      "ListConnections", options, [&list](const v1::ListConnectionsResponse& message) {
        ConnectionList page = FromMessage(message);
        std::move(page.connections.begin(), page.connections.end(),
                  std::back_inserter(list.connections));
        list.owner = std::move(page.owner);
      });
  if (!status.ok()) return status;
  return list;
}

Result<ServerInfo> MessageConnection::GetServerInfo(const CallOptions& options) {
  return CallAndConvert<ServerInfo, v1::GetServerInfoResponse>(
      "GetServerInfo", Result<v1::GetServerInfoRequest>(v1::GetServerInfoRequest()), options);
}

}  // namespace rope::client
