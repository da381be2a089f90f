#include "client/remote_connection.h"

#include <iterator>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/calls/async_call.h"
#include "client/calls/fence.h"
#include "client/calls/prepare_call.h"
#include "client/calls/stream_call.h"
#include "client/codec/codec.h"
#include "client/codec/control_messages.h"
#include "client/codec/message_call.h"
#include "client/codec/messages.h"
#include "client/codec/preparation.h"
#include "client/error.h"

namespace rope::client {

using std::chrono::microseconds;

RemoteConnection::Hooks RemoteConnection::DefaultHooks() {
  return {
      .sleep = [](microseconds delay) { std::this_thread::sleep_for(delay); },
      .random =
          [] {
            thread_local std::minstd_rand generator{std::random_device{}()};
            return std::uniform_real_distribution<double>(0, 1)(generator);
          },
  };
}

RemoteConnection::RemoteConnection(const std::string& target, const ConnectOptions& options,
                                   Hooks hooks)
    : connector_(std::make_shared<Connector>(target, options)),
      attempts_max_(options.attempts_max),
      hooks_(std::move(hooks)) {}

// Everything runs on the calling thread and under no lock. Each attempt gets the link of its
// time, because the connection may have been dialed again.
template <typename Reply, typename Attempt>
Result<Reply> RemoteConnection::Retry(const CallOptions& options, const Attempt& attempt) {
  Attempts attempts(attempts_max_, options.timeout);
  for (;;) {
    const Result<std::shared_ptr<const Link>> link = connector_->Get();
    if (!link.ok()) {
      if (!WaitForNext(attempts, link.status(), /*idempotent=*/true)) return link.status();
      continue;
    }
    Outcome<Reply> outcome = attempt(**link, attempts);
    if (outcome.reply.ok()) return std::move(outcome.reply);
    connector_->Note(**link, outcome.reply.status());
    if (!WaitForNext(attempts, outcome.reply.status(), outcome.idempotent)) {
      return std::move(outcome.reply);
    }
  }
}

Result<grpc::ByteBuffer> RemoteConnection::CallMethod(const std::string& method,
                                                      const grpc::ByteBuffer& request,
                                                      bool idempotent, const CallOptions& options) {
  return Retry<grpc::ByteBuffer>(options, [&](const Link& link, const Attempts& attempts) {
    return Outcome<grpc::ByteBuffer>{link.stub.Call(method, request, attempts.Remaining()),
                                     idempotent};
  });
}

Result<RotateReply> RemoteConnection::Rotate(const RotateRequest& request,
                                             const CallOptions& options) {
  return Retry<RotateReply>(options, [&](const Link& link, const Attempts& attempts) {
    return RotateOnce(link, request, attempts);
  });
}

// Each attempt encodes the request again, because the link and its region may have changed. If
// the server has forgotten the request's id, nothing has run, and the same attempt goes on with the
// whole request.
RemoteConnection::Outcome<RotateReply> RemoteConnection::RotateOnce(const Link& link,
                                                                    const RotateRequest& request,
                                                                    const Attempts& attempts) {
  for (bool is_forgotten = false;; is_forgotten = true) {
    BorrowedSlices borrowed;
    const auto encode = is_forgotten ? &EncodeWhole : &EncodeRotate;
    Result<EncodedRotate> encoded = encode(request, link.region, link.rotate->route(), borrowed);
    if (!encoded.ok()) return {encoded.status(), /*idempotent=*/false};
    const Result<ReceivedReply> reply =
        link.rotate->Rotate(*encoded, borrowed, attempts.Remaining());
    if (reply.ok()) {
      auto result = reply->ToReply(std::move(encoded->wanted), connector_->outputs());
      if (is_forgotten) PrepareAgain(link, *request.prepared, attempts.Remaining());
      return {std::move(result), /*idempotent=*/false};
    }
    const bool was_by_id = !is_forgotten && request.prepared.has_value();
    if (!was_by_id || !IsForgotten(reply.status())) {
      encoded->staged.NoteFailure(reply.status());
      return {reply.status(), encoded->idempotent};
    }
  }
}

bool RemoteConnection::WaitForNext(Attempts& attempts, const Status& status,
                                   bool idempotent) const {
  const std::optional<microseconds> delay =
      attempts.DelayAfter(status, idempotent, hooks_.random());
  if (!delay.has_value()) return false;
  hooks_.sleep(*delay);
  return true;
}

Result<PreparedRotation> RemoteConnection::Prepare(const RotateRequest& request,
                                                   const std::string& open_axis,
                                                   const CallOptions& options) {
  auto preparation = PreparationOf(request, open_axis);
  if (!preparation.ok()) return preparation.status();
  const Result<grpc::ByteBuffer> message = (*preparation)->Message();
  if (!message.ok()) return message.status();
  auto prepared = ReadPrepared(
      *preparation, CallMethod(RopeMethod("Prepare"), *message, /*idempotent=*/true, options));
  if (!prepared.ok()) return prepared.status();
  return PreparedState::RotationOf(*std::move(prepared));
}

Call RemoteConnection::RotateAsync(const RotateRequest& request, RotateCallback callback,
                                   const CallOptions& options) {
  const auto call =
      std::make_shared<AsyncCall>(connector_, Queue(), std::move(callback),
                                  Attempts(attempts_max_, options.timeout), hooks_.random);
  call->Start(request);
  return Call([started = std::weak_ptr<AsyncCall>(call)] {
    if (const auto live = started.lock()) live->Cancel();
  });
}

Result<std::shared_ptr<StreamConnection>> RemoteConnection::OpenStream(
    const StreamOptions& options) {
  if (options.requests_max <= 0 || options.bytes_max <= 0) {
    return Status(StatusCode::kInvalidArgument,
                  absl::StrCat("requests_max, bytes_max: got ", options.requests_max, " and ",
                               options.bytes_max, ", want more than 0"));
  }
  Result<std::shared_ptr<const Link>> link = connector_->Get();
  if (!link.ok()) return link.status();
  auto stream = std::make_shared<StreamCall>(connector_, *std::move(link), Queue(), options);
  stream->Start();
  return std::shared_ptr<StreamConnection>(std::move(stream));
}

// Steps: take the link without dialing; run AwaitFence on it; if that fails, tell the connector,
// and ask it again whether a connection that shared the arena was lost. No lock is held.
Status RemoteConnection::Fence(const CallOptions& options) {
  if (IsCallbackThreadOf(*connector_->callback_owner())) {
    return MakeError(Reason::kWrongState, "Fence", "a call in a callback", "one on another thread");
  }
  const Result<std::shared_ptr<const Link>> link = connector_->GetForFence();
  if (!link.ok()) return link.status();
  const Region& region = (*link)->region;
  if (region.ids == nullptr || region.is_staging) return {};
  const Status status = AwaitFence((*link)->stub, *region.ids, options.timeout);
  if (status.ok()) return status;
  connector_->Note(**link, status);
  const Result<std::shared_ptr<const Link>> now =
      connector_->GetForFence();  // UNAVAILABLE if the failure was a lost connection
  if (!now.ok()) return now.status();
  if (status.code() != StatusCode::kNotFound) return status;
  return MakeError(Reason::kConnectionLost, absl::StrCat("fence: ", status.message()));
}

const std::shared_ptr<EventQueue>& RemoteConnection::Queue() {
  std::call_once(loop_once_, [this] { loop_.emplace(connector_->callback_owner()); });
  return loop_->queue();
}

template <typename Reply, typename Message, typename Request>
Result<Reply> RemoteConnection::CallAndConvert(const char* method, const Result<Request>& request,
                                               const CallOptions& options, bool idempotent) {
  if (!request.ok()) return request.status();
  const Result<Message> reply =
      MessageOf<Message>(CallMethod(RopeMethod(method), BytesOf(*request), idempotent, options));
  if (!reply.ok()) return reply.status();
  return FromMessage(*reply);
}

Result<DescribeReply> RemoteConnection::Describe(const DescribeRequest& request,
                                                 const CallOptions& options) {
  return CallAndConvert<DescribeReply, v1::DescribeResponse>("Describe", ToMessage(request),
                                                             options);
}

Result<TablesReply> RemoteConnection::GetTables(const TablesRequest& request,
                                                const CallOptions& options) {
  return CallAndConvert<TablesReply, v1::GetTablesResponse>("GetTables", ToMessage(request),
                                                            options);
}

// Hands every page of a list to `take`.
template <typename Request, typename Response, typename Take>
Status RemoteConnection::EachPage(const char* method, const CallOptions& options,
                                  const Take& take) {
  Request request;
  do {
    const auto page = MessageOf<Response>(
        CallMethod(RopeMethod(method), BytesOf(request), /*idempotent=*/true, options));
    if (!page.ok()) return page.status();
    take(*page);
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return {};
}

Result<std::vector<Model>> RemoteConnection::ListModels(const CallOptions& options) {
  std::vector<Model> models;
  const Status status = EachPage<v1::ListModelsRequest, v1::ListModelsResponse>(
      "ListModels", options, [&models](const v1::ListModelsResponse& message) {
        std::vector<Model> page = FromMessage(message);
        std::move(page.begin(), page.end(), std::back_inserter(models));
      });
  if (!status.ok()) return status;
  return models;
}

Result<RegisteredModel> RemoteConnection::RegisterModel(const std::string& name,
                                                        const RopeSpec& rope,
                                                        const CallOptions& options) {
  return CallAndConvert<RegisteredModel, v1::RegisterModelResponse>(
      "RegisterModel", ToMessage(name, rope), options, /*idempotent=*/false);
}

Status RemoteConnection::UnregisterModel(const std::string& name, const CallOptions& options) {
  v1::UnregisterModelRequest request;
  request.set_name(name);
  return CallMethod(RopeMethod("UnregisterModel"), BytesOf(request), /*idempotent=*/false, options)
      .status();
}

Result<WarmUpReply> RemoteConnection::WarmUp(const WarmUpRequest& request,
                                             const CallOptions& options) {
  return CallAndConvert<WarmUpReply, v1::WarmUpResponse>("WarmUp", ToMessage(request), options);
}

Result<std::vector<SharedRegion>> RemoteConnection::ListRegions(const CallOptions& options) {
  return CallAndConvert<std::vector<SharedRegion>, v1::ListRegionsResponse>(
      "ListRegions", Result<v1::ListRegionsRequest>(v1::ListRegionsRequest()), options);
}

Result<ConnectionList> RemoteConnection::ListConnections(const CallOptions& options) {
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

Result<ServerInfo> RemoteConnection::GetServerInfo(const CallOptions& options) {
  return CallAndConvert<ServerInfo, v1::GetServerInfoResponse>(
      "GetServerInfo", Result<v1::GetServerInfoRequest>(v1::GetServerInfoRequest()), options);
}

Result<ServingStatus> RemoteConnection::Health(const std::string& service,
                                               const CallOptions& options) {
  return ServingStatusOf(CallMethod("/grpc.health.v1.Health/Check", HealthRequestOf(service),
                                    /*idempotent=*/true, options));
}

}  // namespace rope::client
