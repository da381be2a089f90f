#include "server/rope_service.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/describe.h"
#include "server/error.h"
#include "server/limits.h"
#include "server/rope_codec.h"

namespace rope::server {
namespace {

using Base = v1::RopeService;

// Every method of the service with bytes in and out, on completion queues.
using Unary1 = Base::WithRawMethod_Rotate<Base::WithRawMethod_Describe<
    Base::WithRawMethod_ListModels<Base::WithRawMethod_GetServerInfo<Base::Service>>>>;
using Unary2 = Base::WithRawMethod_RegisterModel<Base::WithRawMethod_UnregisterModel<
    Base::WithRawMethod_RegisterRegion<Base::WithRawMethod_UnregisterRegion<Unary1>>>>;
using AllMethods = Base::WithRawMethod_ListRegions<Base::WithRawMethod_GetTableCacheStatistics<
    Base::WithRawMethod_WarmUp<Base::WithRawMethod_RotateStream<Unary2>>>>;

absl::Status NotBuilt(const std::string& method) {
  return absl::UnimplementedError(absl::StrCat(method, ": not built yet"));
}

}  // namespace

class RopeService::Generated final : public AllMethods {};

// Adds a method: how gRPC is asked for its next call, and what answers it.
#define ROPE_METHOD(name, handle)                                                                 \
  methods_.push_back(std::make_unique<UnaryCall::Method>(                                         \
      UnaryCall::Method{[this](grpc::ServerContext* context, grpc::ByteBuffer* request,           \
                               grpc::ServerAsyncResponseWriter<grpc::ByteBuffer>* writer,         \
                               grpc::ServerCompletionQueue* queue, void* tag) {                   \
                          generated_->Request##name(context, request, writer, queue, queue, tag); \
                        },                                                                        \
                        handle, parts_.in_flight}))

RopeService::RopeService(Parts parts)
    : parts_(std::move(parts)), generated_(std::make_unique<Generated>()) {
  ROPE_METHOD(Rotate, [this](UnaryCall& call) { Rotate(call); });
  ROPE_METHOD(Describe, (Immediate<v1::DescribeRequest, v1::DescribeResponse>(
                            "Describe", [this](const v1::DescribeRequest& request) {
                              return Describe(request, *parts_.registry);
                            })));
  ROPE_METHOD(ListModels, (Immediate<v1::ListModelsRequest, v1::ListModelsResponse>(
                              "ListModels", [this](const v1::ListModelsRequest&) {
                                v1::ListModelsResponse response;
                                for (v1::Model& model : parts_.registry->List()) {
                                  *response.add_models() = std::move(model);
                                }
                                return response;
                              })));
  ROPE_METHOD(GetServerInfo, (Immediate<v1::GetServerInfoRequest, v1::GetServerInfoResponse>(
                                 "GetServerInfo", [this](const v1::GetServerInfoRequest&) {
                                   return parts_.server_info();
                                 })));
  ROPE_METHOD(RegisterModel, Refused("RegisterModel"));
  ROPE_METHOD(UnregisterModel, Refused("UnregisterModel"));
  ROPE_METHOD(RegisterRegion, Refused("RegisterRegion"));
  ROPE_METHOD(UnregisterRegion, Refused("UnregisterRegion"));
  ROPE_METHOD(ListRegions, Refused("ListRegions"));
  ROPE_METHOD(GetTableCacheStatistics, Refused("GetTableCacheStatistics"));
  ROPE_METHOD(WarmUp, Refused("WarmUp"));
  rotate_stream_ = {
      [this](grpc::ServerContext* context, StreamCall::Stream* stream,
             grpc::ServerCompletionQueue* queue,
             void* tag) { generated_->RequestRotateStream(context, stream, queue, queue, tag); },
      [this](StreamCall& call, grpc::ByteBuffer& message) { RotateOnStream(call, message); },
      parts_.in_flight,
      &open_streams_,
      limits::kStreamBytesMax,
      limits::kStreamRequestsMax};
}

#undef ROPE_METHOD

RopeService::~RopeService() = default;

grpc::Service& RopeService::service() {
  return *generated_;
}

void RopeService::Arm(grpc::ServerCompletionQueue& queue, int calls) {
  for (int i = 0; i < calls; ++i) {
    for (const auto& method : methods_) UnaryCall::Arm(*method, queue);
    StreamCall::Arm(rotate_stream_, queue);
  }
}

void RopeService::DrainStreams() {
  open_streams_.Drain();
}

template <typename Call>
std::unique_ptr<Request> RopeService::NewRequest(const Call& call) {
  auto request = std::make_unique<Request>();
  request->received = parts_.clock->Now();
  request->id = MakeId();
  request->session = absl::HashOf(call.context().peer());
  request->deadline = absl::FromChrono(call.context().deadline());
  request->cancelled = call.cancelled();
  return request;
}

void RopeService::Submit(grpc::ByteBuffer& message, std::unique_ptr<Request> request) {
  absl::Status status = DecodeRequest(message, parts_.max_message_bytes, *request);
  request->stages.set_decode(absl::ToDoubleMicroseconds(parts_.clock->Now() - request->received));
  if (status.ok()) status = parts_.engine->Submit(request);
  if (status.ok()) return;
  const Request::Done done = std::move(request->done);
  done(std::move(request), status);
}

void RopeService::Rotate(UnaryCall& call) {
  std::unique_ptr<Request> request = NewRequest(call);
  request->done = [this, &call](std::unique_ptr<Request> finished, const absl::Status& status) {
    Record("Rotate", finished->id, status);
    const grpc::ByteBuffer reply = status.ok() ? EncodeReply(*finished) : grpc::ByteBuffer();
    finished.reset();  // gives permit and received bytes back before the client can ask again
    call.Finish(status, reply);
  };
  Submit(call.request(), std::move(request));
}

void RopeService::RotateOnStream(StreamCall& call, grpc::ByteBuffer& message) {
  std::unique_ptr<Request> request = NewRequest(call);
  const auto bytes = static_cast<int64_t>(message.Length());
  request->done = [this, &call, bytes](std::unique_ptr<Request> finished,
                                       const absl::Status& status) {
    Record("RotateStream", finished->id, status);
    const grpc::ByteBuffer reply =
        status.ok() ? EncodeReply(*finished) : EncodeError(finished->id, status);
    finished.reset();
    call.Answer(reply, bytes);
  };
  Submit(message, std::move(request));
}

template <typename In, typename Out>
UnaryCall::Handler RopeService::Immediate(const std::string& method,
                                          std::function<absl::StatusOr<Out>(const In&)> answer) {
  return [this, method, answer](UnaryCall& call) {
    In request;
    absl::Status status = DecodeMessage(call.request(), request);
    grpc::ByteBuffer reply;
    if (status.ok()) {
      const absl::StatusOr<Out> response = answer(request);
      status = response.status();
      if (status.ok()) reply = EncodeMessage(*response);
    }
    Record(method, MakeId(), status);
    call.Finish(status, reply);
  };
}

UnaryCall::Handler RopeService::Refused(const std::string& method) {
  return [this, method](UnaryCall& call) {
    const absl::Status status = NotBuilt(method);
    Record(method, MakeId(), status);
    call.Finish(status, grpc::ByteBuffer());
  };
}

void RopeService::Record(const std::string& method, const std::string& id,
                         const absl::Status& status) {
  const std::string code = absl::StatusCodeToString(status.code());
  parts_.metrics->CountRequest(method, code);
  if (status.ok()) {
    spdlog::debug("request={} method={} code=OK", id, method);
    return;
  }
  // Ids and messages may hold a client's own text: one line stays one line.
  const std::string safe_id = absl::Utf8SafeCHexEscape(id);
  const std::string message = absl::Utf8SafeCHexEscape(ShortMessage(status.message()));
  const auto level =
      status.code() == absl::StatusCode::kInternal ? spdlog::level::err : spdlog::level::info;
  spdlog::log(level, "request={} method={} code={} message=\"{}\"", safe_id, method, code, message);
}

std::string RopeService::MakeId() {
  return absl::StrCat(parts_.instance_id.substr(0, 8), "-",
                      next_id_.fetch_add(1, std::memory_order_relaxed));
}

}  // namespace rope::server
