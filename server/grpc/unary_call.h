// A unary call, and the service whose calls arrive at their headers.
#ifndef ROPE_SERVER_GRPC_UNARY_CALL_H_
#define ROPE_SERVER_GRPC_UNARY_CALL_H_

#include <grpcpp/completion_queue.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "google/protobuf/descriptor.h"
#include "kernels/check.h"
#include "server/grpc/grpc_status.h"
#include "server/grpc/poll_loop.h"
#include "server/grpc/transfers.h"
#include "server/memory/admission.h"
#include "server/request/request.h"

namespace rope::server {

// RawService: a generated service that gives every call to the server when its headers have come,
// before its message. Messages are raw bytes, on completion queues. The wire format is unchanged: a
// unary call is a stream of one message in each direction.
//
// Threading:  As grpc::Service: set it up before the server starts.

using RawStream = grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>;

// Asks gRPC for the next call of a method.
using RequestCall =
    std::function<void(grpc::ServerContext*, RawStream*, grpc::ServerCompletionQueue*, void* tag)>;

// `Generated`: the class that protoc generates for a service, for example v1::RopeService.
template <typename Generated>
class RawService final : public Generated::Service {
 public:
  explicit RawService(const google::protobuf::ServiceDescriptor& descriptor)
      : descriptor_(descriptor) {
    for (int i = 0; i < descriptor.method_count(); ++i) {
      this->MarkMethodStreamed(i, nullptr);
      this->MarkMethodRaw(i);
    }
  }

  // REQUIRES: the service has the method, and outlives the result.
  RequestCall RequestOf(const std::string& name) {
    const google::protobuf::MethodDescriptor* const method = descriptor_.FindMethodByName(name);
    ROPE_CHECK(method != nullptr);
    return [this, index = method->index()](grpc::ServerContext* context, RawStream* stream,
                                           grpc::ServerCompletionQueue* queue, void* tag) {
      this->RequestAsyncBidiStreaming(index, context, stream, queue, queue, tag);
    };
  }

 private:
  const google::protobuf::ServiceDescriptor& descriptor_;
};

// UnaryCall: one unary RPC with bytes in and bytes out, from being armed to being freed. One class
// for every unary method; only the handler differs.
//
//   armed -> arrived (headers): starts the read, arms a successor if few calls are armed
//         -> read: runs the handler -> Finish (any thread, once) -> sent: arms successors
//         -> or EndTransfer (the message did not come): as Finish with an error
//
// A large reply is in a list until its client has taken it: MemoryWatch may cancel the call.
//
//   State:  kReading -+-> kHandled (OnRead: the handler answers)
//                     +-> kEnded   (EndTransfer: MemoryWatch has answered)
//
// The call frees itself when three events are back: its read, its last step, and gRPC's done
// notification.
//
// Threading:  Steps run on the queue's thread; Finish and EndTransfer may run on any. No mutex:
//             `state_` decides between OnRead and EndTransfer, and `open_` counts references.
// Ownership:  Owns itself from Arm on. Holds the permit of its reply until the client has taken it.

class UnaryCall final : private Transfers::Transfer {
 public:
  // Must lead to one Finish, now or later, on any thread.
  using Handler = std::function<void(UnaryCall&)>;

  // A method and its handler. It outlives its calls.
  struct Method {
    RequestCall request;
    Handler handler;
    CallsInFlight* in_flight = nullptr;
    Transfers* receiving = nullptr;
    Transfers* untaken = nullptr;  // large replies; null: not listed
  };

  // Keeps `calls` calls of `method` armed on `queue` from now on. REQUIRES: the queue's thread has
  // not started.
  static void Arm(const Method& method, grpc::ServerCompletionQueue& queue, int calls);

  uint64_t session() const { return session_; }
  // Time until the client's deadline.
  absl::Duration time_left() const { return TimeLeft(context_); }
  grpc::ByteBuffer& request() { return message_; }
  // gRPC's name for the client.
  std::string peer() const { return context_.peer(); }
  // True once the client has disconnected or cancelled. Safe to read after the call was freed.
  const std::shared_ptr<std::atomic<bool>>& cancelled() const { return cancelled_; }

  // Sends the answer. The caller must not touch the call afterwards. `permit` is released when the
  // client has taken the reply or has gone.
  void Finish(const absl::Status& status, const grpc::ByteBuffer& reply, Permit permit = {});

 private:
  friend class UntakenReply<UnaryCall>;
  enum class State { kReading, kHandled, kEnded };

  // The number of calls of a method that are armed on a queue. Confined to the queue's thread.
  struct Armed {
    const Method& method;
    grpc::ServerCompletionQueue& queue;
    const int wanted;
    int count = 0;
  };

  explicit UnaryCall(std::shared_ptr<Armed> armed)
      : Transfers::Transfer(/*may_idle=*/false),
        open_call_(*armed->method.in_flight),
        method_(armed->method),
        armed_(std::move(armed)),
        stream_(&context_) {}

  // Arms calls until `count` calls are armed.
  static void ArmUpTo(int count, const std::shared_ptr<Armed>& armed);

  void OnArrived(bool ok);
  void OnRead(bool ok);
  void Handle(bool ok);
  void OnSent(bool ok);
  void OnDone(bool ok);

  void EndTransfer(const absl::Status& status) override;
  void AbortTransfer() override { Cancel(); }
  void Cancel() { context_.TryCancel(); }
  void Retain() override { open_.fetch_add(1); }
  void Release() override;
  // Changes kReading to `state`. False: the call has left kReading already.
  bool Claim(State state);

  const CallsInFlight::Open open_call_;  // first, because it ends last
  const Method& method_;
  const std::shared_ptr<Armed> armed_;
  grpc::ServerContext context_;
  RawStream stream_;
  grpc::ByteBuffer message_;
  uint64_t session_ = 0;  // set on arrival
  Permit permit_;         // of the reply
  UntakenReply<UnaryCall> untaken_{*this};
  std::atomic<State> state_{State::kReading};
  const std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);
  std::atomic<int> open_{3};  // read, sent and done
  CallEvent<UnaryCall> arrived_{this, &UnaryCall::OnArrived};
  CallEvent<UnaryCall> read_{this, &UnaryCall::OnRead};
  CallEvent<UnaryCall> sent_{this, &UnaryCall::OnSent};
  CallEvent<UnaryCall> done_{this, &UnaryCall::OnDone};
};

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_UNARY_CALL_H_
