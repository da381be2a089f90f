#include "server/rope_service.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/describe.h"
#include "server/error.h"
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

// A stream that is answered UNIMPLEMENTED at once.
class RopeService::RefusedStream {
 public:
  static void Arm(RopeService& service, grpc::ServerCompletionQueue& queue) {
    auto call =
        std::unique_ptr<RefusedStream>(new RefusedStream(service, queue));  // owned by itself
    RefusedStream& armed = *call.release();
    service.generated_->RequestRotateStream(&armed.context_, &armed.stream_, &queue, &queue,
                                            &armed.received_);
  }

 private:
  RefusedStream(RopeService& service, grpc::ServerCompletionQueue& queue)
      : service_(service), queue_(queue), stream_(&context_) {}

  void OnReceived(bool ok) {
    if (!ok) {
      delete this;
      return;
    }
    Arm(service_, queue_);
    const absl::Status status = NotBuilt("RotateStream");
    service_.Record("RotateStream", service_.MakeId(), status);
    stream_.Finish(ToGrpcStatus(status, context_), &ended_);
  }
  void OnEnded(bool) { delete this; }

  RopeService& service_;
  grpc::ServerCompletionQueue& queue_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> stream_;
  CallEvent<RefusedStream> received_{this, &RefusedStream::OnReceived};
  CallEvent<RefusedStream> ended_{this, &RefusedStream::OnEnded};
};

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
}

#undef ROPE_METHOD

RopeService::~RopeService() = default;

grpc::Service& RopeService::service() {
  return *generated_;
}

void RopeService::Arm(grpc::ServerCompletionQueue& queue, int calls) {
  for (int i = 0; i < calls; ++i) {
    for (const auto& method : methods_) UnaryCall::Arm(*method, queue);
    RefusedStream::Arm(*this, queue);
  }
}

void RopeService::Rotate(UnaryCall& call) {
  auto request = std::make_unique<Request>();
  request->received = parts_.clock->Now();
  request->id = MakeId();
  request->session = absl::HashOf(call.context().peer());
  request->deadline = absl::FromChrono(call.context().deadline());
  request->cancelled = call.cancelled();
  request->done = [this, &call](std::unique_ptr<Request> finished, const absl::Status& status) {
    Reply(call, std::move(finished), status);
  };
  absl::Status status = DecodeRequest(call.request(), parts_.max_message_bytes, *request);
  request->stages.set_decode(absl::ToDoubleMicroseconds(parts_.clock->Now() - request->received));
  if (status.ok()) status = parts_.engine->Submit(request);
  if (!status.ok()) Reply(call, std::move(request), status);
}

void RopeService::Reply(UnaryCall& call, std::unique_ptr<Request> request,
                        const absl::Status& status) {
  Record("Rotate", request->id, status);
  const grpc::ByteBuffer reply = status.ok() ? EncodeReply(*request) : grpc::ByteBuffer();
  request.reset();  // gives permit and received bytes back before the client can ask again
  call.Finish(status, reply);
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
