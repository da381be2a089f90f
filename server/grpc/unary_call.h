// ServiceCall: one unary call, whatever brought it. UnaryCall is one of gRPC; embedded/ has others.
//
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
#ifndef ROPE_SERVER_GRPC_UNARY_CALL_H_
#define ROPE_SERVER_GRPC_UNARY_CALL_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "server/clients/account.h"
#include "server/grpc/poll_loop.h"
#include "server/grpc/queue_call.h"
#include "server/request/request.h"

namespace rope::server {

class ServiceCall : public virtual IncomingCall {
 public:
  // The message, which the handler may clear.
  virtual grpc::ByteBuffer& request() = 0;
  // Sends the answer. The handler must not touch the call afterwards. `permit` is released when the
  // caller has taken the reply or has gone.
  virtual void Finish(const absl::Status& status, const grpc::ByteBuffer& reply,
                      Permit permit = {}) = 0;
};

class UnaryCall final : public QueueCall, public ServiceCall {
 public:
  // Must lead to one Finish, now or later, on any thread.
  using Handler = std::function<void(ServiceCall&)>;

  struct Method : QueueCall::Method {
    Handler handler;
  };

  // Keeps `calls` calls of `method` armed on `queue` from now on. REQUIRES: the queue's thread has
  // not started.
  static void Arm(const Method& method, CallQueue& queue, int calls);

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
  void OnDone() override { ReleaseAndCount(); }
  void EndRead(const absl::Status& status) override { FinishWithoutMessage(status); }
  void ReleaseAndCount();

  const Method& method_;
  Permit permit_;  // of the reply
  bool is_counted_ = false;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_UNARY_CALL_H_
