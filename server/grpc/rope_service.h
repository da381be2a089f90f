// RopeService: the rope.v1 adapter. It turns calls into requests for the engine, and finished
// requests into replies. Core adds the methods of the control plane.
//
// Threading:  Handlers run on the queues' threads. The thread that completes a request sends its
//             reply.
// Ownership:  Everything in Parts must outlive the service and its calls.
#ifndef ROPE_SERVER_GRPC_ROPE_SERVICE_H_
#define ROPE_SERVER_GRPC_ROPE_SERVICE_H_

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "kernels/status_macros.h"
#include "proto/wire/message_split.h"
#include "rope/v1/rope_service.grpc.pb.h"
#include "server/clients/account.h"
#include "server/clock.h"
#include "server/engine/engine.h"
#include "server/error.h"
#include "server/grpc/queue_call.h"
#include "server/grpc/rope_codec.h"
#include "server/grpc/stream_call.h"
#include "server/request/request.h"
#include "server/telemetry/metrics.h"
#include "server/telemetry/request_record.h"

namespace rope::server {

class RopeService {
 public:
  struct Parts {
    Engine* engine = nullptr;
    Metrics* metrics = nullptr;
    const Clock* clock = nullptr;
    QueueCall::Parts calls;
    std::string instance_id;
    int64_t max_message_bytes = 0;
    bool logs_requests = false;
  };
  // The call of a control-plane method, and who calls.
  struct Caller {
    const IncomingCall& call;  // until `done` has been called
    // Of the request's arrays.
    const proto::SplitMessage& payloads;
    // Owns the request and `payloads`. An answerer that uses them after it has returned keeps it.
    std::shared_ptr<const void> received;
    // For memory that the answer takes; may hold the message's. Released when the client has taken
    // the answer.
    std::shared_ptr<Permit> permit;
  };
  template <typename Out>
  using Done = std::function<void(const absl::StatusOr<Out>&)>;
  // Must call `done` once, now or later, on any thread. An answerer that throws std::bad_alloc has
  // not called it, and never does: the call is then answered with RESOURCE_EXHAUSTED.
  template <typename In, typename Out>
  using Answerer = std::function<void(const In& request, const Caller& caller, Done<Out> done)>;

  explicit RopeService(Parts parts);

  // Adds a method of the control plane. REQUIRES: Arm has not been called.
  template <typename In, typename Out>
  void AddMethod(Method method, Answerer<In, Out> answer);

  grpc::Service& service() { return service_; }
  // Arms all methods on `queue`.
  void Arm(CallQueue& queue);
  // Answers a call that came through shared memory.
  void RotateLocal(LocalCall& call);
  // Answers a call of this process, which has no access file.
  void RotateInProcess(InProcessCall& call);
  // Answers a call of this process. REQUIRES: `method` is unary.
  void Handle(Method method, ServiceCall& call);
  // Ends each open stream once the messages that it has read are answered.
  void DrainStreams() { open_streams_.Drain(); }
  int64_t open_streams() const { return open_streams_.count(); }

 private:
  void AddHandler(Method method, UnaryCall::Handler handler);
  QueueCall::Method MethodOf(Method method);
  // Whether the user of a ring may rotate. Sets the identity. As Access::Admit.
  absl::Status AdmitLocal(const LocalCall& call, Arrival& arrival);
  void Rotate(ServiceCall& call);
  void OnStreamMessage(StreamCall& call, grpc::ByteBuffer& bytes);
  // Answers a stream's message that does not become a request. `labels`: null if it has none.
  void RefuseOnStream(StreamCall& call, uint64_t sequence, const Arrival& arrival,
                      const RequestLabels* labels, const absl::Status& status);
  Arrival ArrivalOf(const IncomingCall& call, int64_t message_bytes, Transport transport) const;
  // The result of `decode`, which may set the arrival's id. Without one, the server makes it.
  template <typename Decode>
  auto DecodeWith(const Decode& decode, Arrival& arrival) -> decltype(decode());
  // Submits a request to the engine. `done` runs in any case.
  void Submit(Arrival arrival, Decoded decoded, Request::Done done);
  struct ControlCall {
    ControlCall(Method of, Arrival arrived) : method(of), arrival(std::move(arrived)) {}
    const Method method;
    const Arrival arrival;  // for metrics and log
    Permit permit;
    bool answered = false;
  };
  template <typename In>
  struct Received {
    In request;
    ReceivedPayloads payloads;
  };
  Arrival Receive(ServiceCall& call);
  // Admits what the message takes once it is decoded.
  absl::Status AdmitMessage(ControlCall& control);
  // Encodes the reply. First admits as many bytes as it needs in addition to the admitted bytes of
  // the call.
  absl::Status AdmitAndEncode(const google::protobuf::Message& response, ControlCall& control,
                              grpc::ByteBuffer& reply);
  void Answer(ServiceCall& call, ControlCall& control, const absl::Status& status,
              const grpc::ByteBuffer& reply);

  // Counts and logs a finished request, before its answer is sent.
  void RecordRotation(Method method, const IncomingCall& call, const Request& request,
                      const absl::Status& status, int64_t reply_bytes);
  // Counts and logs a call or message that never became a request. `labels`: null if it has none.
  void Record(Method method, const IncomingCall& call, const Arrival& arrival,
              const RequestLabels* labels, const absl::Status& status, int64_t reply_bytes);
  std::string MakeId();

  const Parts parts_;
  RawService<v1::RopeService> service_;
  std::array<std::unique_ptr<UnaryCall::Method>, kMethodCount> methods_;  // null: not unary
  OpenStreams open_streams_;
  StreamCall::Method rotate_stream_;
  const std::string id_prefix_;  // of request ids that this process makes
  std::atomic<uint64_t> next_id_{1};
};

template <typename In, typename Out>
void RopeService::AddMethod(Method method, Answerer<In, Out> answer) {
  AddHandler(method, [this, method, answer = std::move(answer)](ServiceCall& call) {
    const auto control = std::make_shared<ControlCall>(method, Receive(call));
    const Done<Out> done = [this, &call, control](const absl::StatusOr<Out>& response) {
      grpc::ByteBuffer reply;
      absl::Status status = response.status();
      if (status.ok()) status = AdmitAndEncode(*response, *control, reply);
      Answer(call, *control, status, reply);
    };
    const absl::Status status = WithoutExceptions([&]() -> absl::Status {
      ROPE_RETURN_IF_ERROR(AdmitMessage(*control));
      const auto received = std::make_shared<Received<In>>();
      ROPE_RETURN_IF_ERROR(DecodeMessage(call.request(), received->request, received->payloads));
      answer(received->request,
             {call, received->payloads.split, received,
              std::shared_ptr<Permit>(control, &control->permit)},
             done);
      return absl::OkStatus();
    });
    if (!status.ok() && !control->answered) done(status);
  });
}

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_ROPE_SERVICE_H_
