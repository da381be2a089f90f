// Calls of a completion queue: RawService gives their messages as bytes, CallArming asks gRPC for
// the next one, QueueCall is the base of all, and UnaryCall is the unary one.
#ifndef ROPE_SERVER_GRPC_QUEUE_CALL_H_
#define ROPE_SERVER_GRPC_QUEUE_CALL_H_

#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "google/protobuf/descriptor.h"
#include "kernels/check.h"
#include "server/clients/access.h"
#include "server/clients/account.h"
#include "server/clients/connections.h"
#include "server/grpc/grpc_status.h"
#include "server/grpc/poll_loop.h"
#include "server/request/request.h"
#include "server/telemetry/counts.h"

namespace rope::server {

// RawService: a generated service that gives every call to the server when its headers have come,
// before its message. Messages are raw bytes, on completion queues. The wire format is unchanged: a
// unary call is a stream of one message in each direction.
//
// Threading:  As grpc::Service: set it up before the server starts.

using RawContext = grpc::GenericServerContext;
using RawStream = grpc::GenericServerAsyncReaderWriter;

// Calls of each method that are armed on each queue.
namespace limits {
inline constexpr int kArmedCalls = 4;
}

// Asks gRPC for the next call of a method.
using RequestCall =
    std::function<void(RawContext*, RawStream*, grpc::ServerCompletionQueue*, void* tag)>;

// `Generated`: the class that protoc generates for a service, for example v1::RopeService.
template <typename Generated>
class RawService final : public Generated::Service {
 public:
  RawService() {
    for (int i = 0; i < descriptor_.method_count(); ++i) {
      this->MarkMethodStreamed(i, nullptr);
      this->MarkMethodRaw(i);
    }
  }

  // REQUIRES: the service has the method, and outlives the result.
  RequestCall RequestOf(const std::string& name) {
    const google::protobuf::MethodDescriptor* const method = descriptor_.FindMethodByName(name);
    ROPE_CHECK(method != nullptr);
    return [this, index = method->index()](RawContext* context, RawStream* stream,
                                           grpc::ServerCompletionQueue* queue, void* tag) {
      this->RequestAsyncBidiStreaming(index, context, stream, queue, queue, tag);
    };
  }

 private:
  const google::protobuf::ServiceDescriptor& descriptor_ =
      *google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
          Generated::service_full_name());
};

class QueueCall;

// CallArming: keeps calls of one method armed on one queue. Arming takes time for which a client
// would wait, so a call arms its successor with its last step. Slow calls must not leave the method
// without armed calls: below half, their arrival arms one.
//
// Threading:  Confined to the queue's thread.
// Ownership:  Shared by the calls of the method on the queue.
class CallArming final : public std::enable_shared_from_this<CallArming> {
 public:
  // Arms `wanted` calls now, each a Call(from, its arming), which owns itself once it is armed.
  // `request` and `from` must outlive the calls. REQUIRES: the queue's thread has not started.
  template <typename Call, typename From>
  static void Start(CallQueue& queue, const RequestCall& request, From& from,
                    int wanted = limits::kArmedCalls) {
    Make make = [&from](std::shared_ptr<CallArming> its) {
      return std::unique_ptr<QueueCall>(new Call(from, std::move(its)));  // owned by the result
    };
    const std::shared_ptr<CallArming> arming(
        new CallArming(queue, request, wanted, std::move(make)));  // owned by its calls
    arming->Refill();
  }

  CallQueue& queue() { return queue_; }
  // An armed call has arrived.
  void Take() { --armed_; }
  void ArmIfFew() { ArmUpTo((wanted_ + 1) / 2); }
  void Refill() { ArmUpTo(wanted_); }

 private:
  using Make = std::function<std::unique_ptr<QueueCall>(std::shared_ptr<CallArming>)>;

  CallArming(CallQueue& queue, const RequestCall& request, int wanted, Make make)
      : queue_(queue), request_(request), wanted_(wanted), make_(std::move(make)) {}

  void ArmUpTo(int count);

  CallQueue& queue_;
  const RequestCall& request_;
  const int wanted_;
  const Make make_;
  int armed_ = 0;
};

// QueueCall: one RPC with bytes in and bytes out, from being armed to being freed.
//
//   armed -> arrived (headers): has a connection -> read, write and finish, as the class decides
//                          \-> refused: its client lacks the right (access.h)
//
// gRPC reports that an RPC is over (done) besides its last step. A class waits for some of these
// events, and each of them releases the call. The last release deletes it.
//
// Threading:  Steps run on the queue's thread.
// Ownership:  Owns itself from Arm on.
class QueueCall : public virtual IncomingCall, protected MessageReads::Entry {
 public:
  // What calls share. It outlives them.
  struct Parts {
    CallsInFlight* in_flight = nullptr;
    Connections* connections = nullptr;
    MessageReads* reads = nullptr;
    Access* access = nullptr;  // null: every client has every right
  };
  // A method. It outlives its calls.
  struct Method {
    RequestCall request;
    Parts parts;
    // Null: its calls are not counted. Every call begins here, and one that is refused ends here.
    // The class or its handler ends others.
    CallCounts* counts = nullptr;
    // That its caller needs, where there is an access file. Unset: none, as health.
    std::optional<Right> right = {};
    std::string name = {};  // for the log
  };

  ~QueueCall() override = default;
  QueueCall(const QueueCall&) = delete;
  QueueCall& operator=(const QueueCall&) = delete;

  Connection& connection() const override { return *connection_; }
  // That of the caller's identity, or of the place that it calls from.
  const std::shared_ptr<Account>& account() const override { return account_; }
  // Its connection, or what a trusted proxy says.
  const std::string& origin() const override { return origin_->owner(); }
  std::shared_ptr<const Identity> identity() const override { return identity_; }
  // REQUIRES: the call has not ended.
  absl::string_view Header(const char* name) const override;
  absl::Duration time_left() const override { return TimeLeft(context_); }
  const std::shared_ptr<std::atomic<bool>>& cancelled() const override { return cancelled_; }

 protected:
  // `releases`: the number of them that deletes the call.
  QueueCall(const Method& method, std::shared_ptr<CallArming> arming, int releases)
      : parts_(method.parts),
        arming_(std::move(arming)),
        stream_(&context_),
        of_(method),
        releases_left_(releases) {
    parts_.in_flight->Open();
  }

  // The steps. Shutdown before a call came deletes it without one.
  virtual void OnArrived() = 0;
  virtual void OnRead(bool /*ok*/) {}
  virtual void OnWritten(bool /*ok*/) {}
  virtual void OnEnded(bool /*ok*/) { Release(); }
  virtual void OnDone() { Release(); }
  // OnRead follows, with false.
  void EndRead(const absl::Status& /*status*/) override { context_.TryCancel(); }
  void CancelRead() override { context_.TryCancel(); }

  // Counts the call as in flight until it is freed.
  void Count() {
    parts_.in_flight->Add();
    is_counted_ = true;
  }
  // Deletes the call with the last of its releases. One thread at a time.
  void Release() {
    if (--releases_left_ == 0) Delete();
  }

  void StartRead(bool is_open_stream = false) {
    parts_.reads->Enter(*this, account_->owner(), is_open_stream);
    stream_.Read(&message_, &read_);
  }
  void StartWrite(const grpc::ByteBuffer& bytes, grpc::WriteOptions options = {}) {
    stream_.Write(bytes, options, &written_);
  }
  void StartFinish(const absl::Status& status) {
    stream_.Finish(ToGrpcStatus(status, context_), &ended_);
  }
  // As StartFinish, and ends the call in the counts of its method.
  void FinishWithoutMessage(const absl::Status& status) {
    if (of_.counts != nullptr) of_.counts->End({.code = status.code()});
    StartFinish(status);
  }

  const Parts& parts_;
  const std::shared_ptr<CallArming> arming_;
  RawContext context_;
  RawStream stream_;
  grpc::ByteBuffer message_;  // being read
  CallEvent<QueueCall> ended_{this, &QueueCall::Ended};

 private:
  friend class CallArming;

  // Asks gRPC for the next call, which becomes this one.
  void Request(const RequestCall& request) {
    context_.AsyncNotifyWhenDone(&done_);
    request(&context_, &stream_, &arming_->queue().completion_queue(), &arrived_);
  }
  void Delete();
  void Arrived(bool ok);
  // UNAUTHENTICATED, PERMISSION_DENIED: as Access::Admit. Sets identity_ and account_.
  absl::Status Admit();
  // The bearer token that the client has sent; empty: no authorization header.
  std::string Token() const;
  // Names of the certificate that the client has shown.
  std::vector<std::string> CertificateNames() const;
  void Read(bool ok);
  void Ended(bool ok);
  void Done(bool ok);

  const Method& of_;
  int releases_left_;
  bool is_counted_ = false;
  // Set on arrival.
  std::shared_ptr<Connection> connection_;
  std::shared_ptr<Account> origin_;  // the connection's, or of whom a proxy calls for
  std::shared_ptr<Account> account_;
  std::shared_ptr<const Identity> identity_;
  bool refused_ = false;  // before its first step
  const std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);
  CallEvent<QueueCall> arrived_{this, &QueueCall::Arrived};
  CallEvent<QueueCall> read_{this, &QueueCall::Read};
  CallEvent<QueueCall> written_{this, &QueueCall::OnWritten};
  CallEvent<QueueCall> done_{this, &QueueCall::Done};
};

// ServiceCall: one unary call, whatever brought it. UnaryCall is one of gRPC; embedded/ has others.
class ServiceCall : public virtual IncomingCall {
 public:
  // The message, which the handler may clear.
  virtual grpc::ByteBuffer& request() = 0;
  // Sends the answer. The handler must not touch the call afterwards. `permit` is released when the
  // caller has taken the reply or has gone.
  virtual void Finish(const absl::Status& status, const grpc::ByteBuffer& reply,
                      Permit permit = {}) = 0;
};

// UnaryCall: one unary RPC with bytes in and bytes out, from being armed to being freed. One class
// for every unary method; only the handler differs.
//
//   arrived: starts the read -> read: runs the handler -> Finish (any thread, once) -> ended
//   arrived -> EndRead (the message did not come in time): as Finish with an error
//
// Three events release the call: its read, its last step, and gRPC's done notification.
//
// Threading:  Steps run on the queue's thread; Finish may run on any.
// Ownership:  Owns itself from Arm on. Holds the permit of its reply until the client has taken it.
class UnaryCall final : public QueueCall, public ServiceCall {
 public:
  // Must lead to one Finish, now or later, on any thread.
  using Handler = std::function<void(ServiceCall&)>;

  struct Method : QueueCall::Method {
    Handler handler;
  };

  grpc::ByteBuffer& request() override { return message_; }
  void Finish(const absl::Status& status, const grpc::ByteBuffer& reply,
              Permit permit = {}) override;

 private:
  friend class CallArming;

  UnaryCall(const Method& method, std::shared_ptr<CallArming> arming)
      : QueueCall(method, std::move(arming), /*releases=*/3), method_(method) {}

  void OnArrived() override { StartRead(); }
  void OnRead(bool ok) override;
  void OnEnded(bool ok) override;
  void EndRead(const absl::Status& status) override { FinishWithoutMessage(status); }

  const Method& method_;
  Permit permit_;  // of the reply
};

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_QUEUE_CALL_H_
