#include "client/message_connection.h"

#include <iterator>
#include <utility>

#include "client/codec/control_messages.h"
#include "client/codec/message_call.h"
#include "client/codec/messages.h"
#include "client/codec/preparation.h"

namespace rope::client {

Result<PreparedRotation> MessageConnection::Prepare(const RotateRequest& request,
                                                    const std::string& open_axis,
                                                    const CallOptions& options) {
  auto preparation = PreparationOf(request, open_axis);
  if (!preparation.ok()) return preparation.status();
  const Result<grpc::ByteBuffer> message = (*preparation)->Message();
  if (!message.ok()) return message.status();
  auto prepared =
      ReadPrepared(*preparation, CallMethod("Prepare", *message, /*idempotent=*/true, options));
  if (!prepared.ok()) return prepared.status();
  return PreparedState::RotationOf(*std::move(prepared));
}

template <typename Reply, typename Message, typename Request>
Result<Reply> MessageConnection::CallAndConvert(const char* method, const Result<Request>& request,
                                                const CallOptions& options) {
  if (!request.ok()) return request.status();
  const Result<Message> reply =
      MessageOf<Message>(CallMethod(method, BytesOf(*request), /*idempotent=*/true, options));
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
