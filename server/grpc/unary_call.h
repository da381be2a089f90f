// UnaryCall: one unary RPC with bytes in and bytes out, from being armed to being freed. The same
// object for every unary method; what differs is the handler.
//
//   armed -> arrived (its headers): reads, arms a successor where few are armed
//         -> read: runs the handler, arms successors -> Finish (any thread, once) -> sent
//         -> or EndRead, where the message does not come: as Finish with an error
//
// The call frees itself when its read, its last step and gRPC's done notification have come back.
//
// Threading:  Steps run on the queue's thread; Finish and EndRead may be called from any.
// Ownership:  Owns itself from Arm on. Holds the permit of its reply until the client has taken it.
#ifndef ROPE_SERVER_GRPC_UNARY_CALL_H_
#define ROPE_SERVER_GRPC_UNARY_CALL_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/grpc/calls_in_flight.h"
#include "server/grpc/grpc_deadline.h"
#include "server/grpc/poll_loop.h"
#include "server/grpc/raw_service.h"
#include "server/grpc/receiving.h"
#include "server/memory/admission.h"
#include "server/request/session.h"

namespace rope::server {

class UnaryCall final : private Receiving::Read {
 public:
  // Asks gRPC for the next call of the method.
  using Request = std::function<void(grpc::ServerContext*, RawStream*, grpc::ServerCompletionQueue*,
                                     void* tag)>;
  // Must lead to one Finish, now or later, on any thread.
  using Handler = std::function<void(UnaryCall&)>;

  // A method as the server serves it; outlives its calls.
  struct Method {
    Request request;
    Handler handler;
    CallsInFlight* in_flight = nullptr;
    Receiving* receiving = nullptr;
  };

  // Waits for `calls` calls of `method` on `queue` at a time from now on. REQUIRES: before the
  // queue's thread starts.
  static void Arm(const Method& method, grpc::ServerCompletionQueue& queue, int calls);

  uint64_t session() const { return session_; }
  // Until the client gives up.
  absl::Duration time_left() const { return TimeLeft(context_); }
  grpc::ByteBuffer& request() { return message_; }
  // What gRPC calls the client.
  std::string peer() const { return context_.peer(); }
  // True once the client has gone or given up; safe to read after the call was freed.
  const std::shared_ptr<std::atomic<bool>>& cancelled() const { return cancelled_; }

  // Answers. Nothing of the call may be touched afterwards. `permit` goes when the client has taken
  // the reply, or has gone.
  void Finish(const absl::Status& status, const grpc::ByteBuffer& reply, Permit permit = {});

 private:
  enum class State { kReading, kHandled, kEnded };

  // The calls of a method that are armed on a queue, whose thread alone looks at it.
  struct Armed {
    const Method& method;
    grpc::ServerCompletionQueue& queue;
    const int wanted;
    int count = 0;
  };

  explicit UnaryCall(std::shared_ptr<Armed> armed)
      : Receiving::Read(/*may_idle=*/false),
        method_(armed->method),
        armed_(std::move(armed)),
        stream_(&context_) {}

  // Arms calls until `count` of them are.
  static void ArmUpTo(int count, const std::shared_ptr<Armed>& armed);

  void OnArrived(bool ok);
  void OnRead(bool ok);
  void Handle(bool ok);
  void OnSent(bool ok);
  void OnDone(bool ok);

  void EndRead(const absl::Status& status) override;
  void AbortRead() override { context_.TryCancel(); }
  void Retain() override { open_.fetch_add(1); }
  void Release() override;
  // Leaves kReading; false: somebody has before.
  bool Claim(State state);

  const Method& method_;
  const std::shared_ptr<Armed> armed_;
  grpc::ServerContext context_;
  RawStream stream_;
  grpc::ByteBuffer message_;
  uint64_t session_ = 0;  // set when it arrives
  Permit permit_;         // of the reply
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
