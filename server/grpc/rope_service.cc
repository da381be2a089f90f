#include "server/grpc/rope_service.h"

#include "absl/strings/str_cat.h"
#include "server/limits.h"
#include "server/models/model_registry.h"
#include "server/request/plan.h"
#include "server/telemetry/log.h"

namespace rope::server {
namespace {

// A message of the control plane: two config_json of the largest size, with room.
constexpr int64_t kControlMessageBytesMax = 4 * limits::kMiB;
static_assert(2 * limits::kConfigJsonBytesMax < kControlMessageBytesMax);
static_assert(limits::kConfigJsonBytesMax < limits::kSkeletonBytesMax);
// Messages and replies of the control plane up to this size are not admitted: gRPC's own call is as
// large.
constexpr int64_t kControlSmallBytes = 4 * limits::kKiB;

Right RightOf(Method method) {
  switch (method) {
    case Method::kDescribe:
    case Method::kFingerprint:
    case Method::kGetTables:
    case Method::kListModels:
      return Right::kDescribe;
    case Method::kGetServerInfo:
    case Method::kListConnections:
    case Method::kListRegions:
      return Right::kInspect;
    case Method::kRotate:
    case Method::kRotateStream:
    case Method::kPrepare:
    case Method::kRegisterRegion:
    case Method::kUnregisterRegion:
      return Right::kRotate;
  }
  return Right::kInspect;
}

int64_t BytesOf(const grpc::ByteBuffer& message) {
  return static_cast<int64_t>(message.Length());
}

// Returns the request's permit, reduced to the bytes of its reply: the rest is about to be freed.
Permit PermitOf(Request& finished, const grpc::ByteBuffer& reply) {
  Permit permit = std::move(finished.permit);
  permit.KeepReply(BytesOf(reply));
  return permit;
}

// A call may name memory in place of bytes.
Transport TransportOf(const Request& request) {
  const Transport transport = request.arrival.transport;
  const std::shared_ptr<const Region>& region = request.plan.tensors.front().source.region;
  if (transport != Transport::kInline || region == nullptr) return transport;
  return region->kind() == Region::Kind::kMemfd ? Transport::kMemfd : Transport::kInProcess;
}

// REQUIRES: the rotation succeeded.
RotationLabels LabelsOf(const Request& request) {
  const v1::RotateRequest& fixed = request.fixed();
  std::string_view model = kConfigModel;
  if (fixed.has_rows()) model = kRowsModel;
  if (fixed.rope().has_model()) model = fixed.rope().model();
  return {TransportOf(request), fixed.operation(), model};
}

grpc::ByteBuffer StreamError(uint64_t sequence, const std::string& request_id,
                             const absl::Status& status) {
  v1::RotateStreamResponse response;
  response.set_sequence(sequence);
  *response.mutable_rotate() = ErrorReply(request_id, status);
  return EncodeMessage(response);
}

}  // namespace

RopeService::RopeService(Parts parts)
    : parts_(std::move(parts)), id_prefix_(absl::StrCat(parts_.instance_id.substr(0, 8), "-")) {
  AddHandler(Method::kRotate, [this](ServiceCall& call) { Rotate(call); });
  rotate_stream_ = {
      MethodOf(Method::kRotateStream),
      [this](StreamCall& call, grpc::ByteBuffer& message) { OnStreamMessage(call, message); },
      &open_streams_};
}

void RopeService::AddHandler(Method method, UnaryCall::Handler handler) {
  methods_[static_cast<size_t>(method)] =
      std::make_unique<UnaryCall::Method>(UnaryCall::Method{MethodOf(method), std::move(handler)});
}

QueueCall::Method RopeService::MethodOf(Method method) {
  const std::string name(Name(method));
  return {service_.RequestOf(name), parts_.calls, &parts_.metrics->CallsOf(method), RightOf(method),
          name};
}

void RopeService::Arm(CallQueue& queue) {
  for (const auto& method : methods_) {
    if (method != nullptr) CallArming::Start<UnaryCall>(queue, method->request, *method);
  }
  CallArming::Start<StreamCall>(queue, rotate_stream_.request, rotate_stream_);
}

Arrival RopeService::ArrivalOf(const IncomingCall& call, int64_t message_bytes,
                               Transport transport) const {
  Arrival arrival;
  arrival.transport = transport;
  arrival.received = parts_.clock->Now();
  arrival.session = call.connection().id();
  arrival.connection = &call.connection();
  arrival.account = call.account().get();
  arrival.deadline = arrival.received + call.time_left();
  arrival.cancelled = call.cancelled();
  arrival.identity = call.identity();
  arrival.message_bytes = message_bytes;
  return arrival;
}

template <typename Decode>
auto RopeService::DecodeWith(const Decode& decode, Arrival& arrival) -> decltype(decode()) {
  decltype(decode()) decoded;
  const absl::Status status = WithoutExceptions([&] {
    decoded = decode();
    return decoded.status();
  });
  if (arrival.id.empty()) arrival.id = MakeId();
  if (!status.ok()) return status;
  return decoded;
}

void RopeService::Submit(Arrival arrival, Decoded decoded, Request::Done done) {
  auto request = std::make_unique<Request>(std::move(arrival), std::move(decoded));
  request->done = std::move(done);
  request->stages.decode = Microseconds(parts_.clock->Now() - request->arrival.received);
  const absl::Status status = parts_.engine->Submit(request);
  if (status.ok()) return;
  done = std::move(request->done);
  done(std::move(request), status);
}

void RopeService::Handle(Method method, ServiceCall& call) {
  methods_[static_cast<size_t>(method)]->handler(call);
}

void RopeService::Rotate(ServiceCall& call) {
  Arrival arrival = ArrivalOf(call, BytesOf(call.request()), Transport::kInline);
  auto decoded = DecodeWith(
      [&] { return DecodeRequest(call.request(), parts_.max_message_bytes, arrival); }, arrival);
  if (!decoded.ok()) {
    Record(Method::kRotate, call, arrival, nullptr, decoded.status(), 0);
    return call.Finish(decoded.status(), grpc::ByteBuffer());
  }
  Submit(std::move(arrival), *std::move(decoded),
         [this, &call](std::unique_ptr<Request> finished, const absl::Status& status) {
           const grpc::ByteBuffer reply = status.ok() ? EncodeReply(*finished) : grpc::ByteBuffer();
           RecordRotation(Method::kRotate, call, *finished, status, BytesOf(reply));
           Permit permit = PermitOf(*finished, reply);
           finished.reset();  // frees received bytes before the client can call again
           call.Finish(status, reply, std::move(permit));
         });
}

void RopeService::OnStreamMessage(StreamCall& call, grpc::ByteBuffer& bytes) {
  Arrival arrival = ArrivalOf(call, BytesOf(bytes), Transport::kStream);
  proto::StreamMessage message;
  auto decoded = DecodeWith(
      [&] { return DecodeStreamRequest(bytes, parts_.max_message_bytes, message, arrival); },
      arrival);
  if (!decoded.ok()) {
    return RefuseOnStream(call, message.sequence, arrival, nullptr, decoded.status());
  }
  if (!decoded->has_value()) {
    call.CancelRequest(message.sequence);
    return call.Drop(arrival.message_bytes);
  }
  if (!call.BeginRequest(message.sequence, arrival.cancelled)) {
    return RefuseOnStream(call, message.sequence, arrival, &(*decoded)->message().labels(),
                          InvalidField("sequence", message.sequence,
                                       "a number that no unanswered request of the stream has"));
  }
  Submit(std::move(arrival), **std::move(decoded),
         [this, &call, sequence = message.sequence](std::unique_ptr<Request> finished,
                                                    const absl::Status& status) {
           grpc::ByteBuffer reply = status.ok()
                                        ? EncodeReply(*finished, sequence)
                                        : StreamError(sequence, finished->arrival.id, status);
           RecordRotation(Method::kRotateStream, call, *finished, status, BytesOf(reply));
           const int64_t message_bytes = finished->arrival.message_bytes;
           Permit permit = PermitOf(*finished, reply);
           finished.reset();
           call.EndRequest(sequence);
           call.Answer(reply, message_bytes, std::move(permit));
         });
}

void RopeService::RefuseOnStream(StreamCall& call, uint64_t sequence, const Arrival& arrival,
                                 const RequestLabels* labels, const absl::Status& status) {
  grpc::ByteBuffer reply = StreamError(sequence, arrival.id, status);
  Record(Method::kRotateStream, call, arrival, labels, status, BytesOf(reply));
  call.Answer(reply, arrival.message_bytes, Permit());
}

// A ring lasts; its user's right may not.
absl::Status RopeService::AdmitLocal(const LocalCall& call, Arrival& arrival) {
  if (parts_.calls.access == nullptr) return absl::OkStatus();
  ROPE_ASSIGN_OR_RETURN(
      arrival.identity,
      parts_.calls.access->Admit({.owner = call.connection().owner()}, Right::kRotate));
  arrival.account = arrival.identity->account.get();
  return absl::OkStatus();
}

void RopeService::RotateLocal(LocalCall& call) {
  parts_.calls.in_flight->Add();
  Arrival arrival = ArrivalOf(call, call.message_bytes(), Transport::kRing);
  auto decoded = DecodeWith(
      [&]() -> absl::StatusOr<Decoded> {
        ROPE_RETURN_IF_ERROR(AdmitLocal(call, arrival));
        return DecodeSmallRequest(call.CopyMessage(), arrival);
      },
      arrival);
  if (!decoded.ok()) {
    const std::string reply = ErrorReply(arrival.id, decoded.status()).SerializeAsString();
    Record(Method::kRotate, call, arrival, nullptr, decoded.status(),
           static_cast<int64_t>(reply.size()));
    call.Answer(decoded.status().code(), reply);
    return parts_.calls.in_flight->Remove();
  }
  Submit(std::move(arrival), *std::move(decoded),
         [this, &call](std::unique_ptr<Request> finished, const absl::Status& status) {
           const std::string reply =
               status.ok() ? EncodeSmallReply(*finished)
                           : ErrorReply(finished->arrival.id, status).SerializeAsString();
           RecordRotation(Method::kRotate, call, *finished, status,
                          static_cast<int64_t>(reply.size()));
           finished.reset();
           call.Answer(status.code(), reply);
           parts_.calls.in_flight->Remove();
         });
}

void RopeService::RotateInProcess(InProcessCall& call) {
  parts_.calls.in_flight->Add();
  Decoded decoded = call.TakeRequest();
  Arrival arrival = ArrivalOf(call, static_cast<int64_t>(decoded.message().ByteSizeLong()),
                              Transport::kInProcess);
  arrival.queue = call.queue();
  TakeId(decoded.message().request_id(), arrival);
  if (arrival.id.empty()) arrival.id = MakeId();
  Submit(std::move(arrival), std::move(decoded),
         [this, &call](std::unique_ptr<Request> finished, const absl::Status& status) {
           RecordRotation(Method::kRotate, call, *finished, status, /*reply_bytes=*/0);
           call.Answer(std::move(finished), status);
           parts_.calls.in_flight->Remove();
         });
}

Arrival RopeService::Receive(ServiceCall& call) {
  Arrival arrival = ArrivalOf(call, BytesOf(call.request()), Transport::kInline);
  arrival.id = MakeId();
  return arrival;
}

absl::Status RopeService::AdmitMessage(ControlCall& control) {
  const int64_t bytes = control.arrival.message_bytes;
  ROPE_RETURN_IF_ERROR(
      CheckAtMost(bytes, kControlMessageBytesMax, "request", " bytes", " of this method"));
  if (bytes <= kControlSmallBytes) return absl::OkStatus();
  return control.permit.Admit(*control.arrival.account, bytes * (1 + limits::kSkeletonFactor),
                              "request");
}

absl::Status RopeService::AdmitAndEncode(const google::protobuf::Message& response,
                                         ControlCall& control, grpc::ByteBuffer& reply) {
  const auto bytes = static_cast<int64_t>(response.ByteSizeLong());
  if (bytes > kControlSmallBytes) {
    ROPE_RETURN_IF_ERROR(
        control.permit.Admit(*control.arrival.account, bytes - control.permit.bytes(), "reply"));
  }
  return WithoutExceptions([&] {
    reply = EncodeMessage(response);
    return absl::OkStatus();
  });
}

// Frees a message that was refused before it was decoded.
void RopeService::Answer(ServiceCall& call, ControlCall& control, const absl::Status& status,
                         const grpc::ByteBuffer& reply) {
  const int64_t reply_bytes = BytesOf(reply);
  Record(control.method, call, control.arrival, nullptr, status, reply_bytes);
  call.request().Clear();
  control.permit.KeepReply(reply_bytes);
  control.answered = true;
  call.Finish(status, reply, std::move(control.permit));
}

void RopeService::RecordRotation(Method method, const IncomingCall& call, const Request& request,
                                 const absl::Status& status, int64_t reply_bytes) {
  if (status.ok()) {
    parts_.metrics->CountRotation(request.stages, request.plan.tokens, LabelsOf(request));
  }
  Record(method, call, request.arrival, &request.call().labels(), status, reply_bytes);
}

void RopeService::Record(Method method, const IncomingCall& call, const Arrival& arrival,
                         const RequestLabels* labels, const absl::Status& status,
                         int64_t reply_bytes) {
  const auto add_caller = [&](LogLine& line) {
    const auto add = [&line](absl::string_view key, absl::string_view value) {
      if (!value.empty()) line.Text(key, ShortText(value, limits::kRequestIdBytesMax));
    };
    add("peer", call.origin());
    if (arrival.identity != nullptr) add("identity", arrival.identity->name);
    add("x_request_id", call.Header("x-request-id"));
    add("trace_id", TraceIdOf(call.Header("traceparent")));
  };
  AddRecord(
      {method, arrival.transport, arrival.id, labels, status,
       parts_.clock->Now() - arrival.received, arrival.message_bytes, reply_bytes, add_caller},
      parts_.logs_requests, *parts_.metrics);
}

std::string RopeService::MakeId() {
  return absl::StrCat(id_prefix_, next_id_.fetch_add(1, std::memory_order_relaxed));
}

}  // namespace rope::server
