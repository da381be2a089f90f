// EchoCall: one unary RPC of the yardstick, served by gRPC's own API. It arrives with its complete
// message, and no budget counts it.
//
//   armed -> received: runs the handler, arms its successor -> Finish (any thread, once) -> sent
//
// The call frees itself when both its last step and gRPC's done notification have come back.
//
// Threading:  Steps run on the queue's thread; Finish may be called from any.
// Ownership:  Owns itself from Arm on.
#ifndef ROPE_TESTS_BENCH_ECHO_CALL_H_
#define ROPE_TESTS_BENCH_ECHO_CALL_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/async_unary_call.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "server/grpc/grpc_status.h"
#include "server/grpc/poll_loop.h"

namespace rope::bench {

class EchoCall {
 public:
  // Registers with gRPC for the next call of the method.
  using Request = std::function<void(grpc::ServerContext*, grpc::ByteBuffer*,
                                     grpc::ServerAsyncResponseWriter<grpc::ByteBuffer>*,
                                     grpc::ServerCompletionQueue*, void* tag)>;
  // Must cause exactly one Finish, now or later, on any thread.
  using Handler = std::function<void(EchoCall&)>;

  // The server's implementation of a method; must outlive its calls.
  struct Method {
    Request request;
    Handler handler;
    server::CallsInFlight* in_flight = nullptr;
  };

  // Waits for one call of `method` on `queue`, and registers for the next one when it has arrived.
  static void Arm(const Method& method, grpc::ServerCompletionQueue& queue) {
    auto call = std::unique_ptr<EchoCall>(new EchoCall(method, queue));  // owned by itself below
    EchoCall& armed = *call.release();
    armed.context_.AsyncNotifyWhenDone(&armed.done_);
    method.request(&armed.context_, &armed.request_, &armed.writer_, &queue, &armed.received_);
  }

  grpc::ByteBuffer& request() { return request_; }

  // Answers. The caller must not touch the call afterwards.
  void Finish(const absl::Status& status, const grpc::ByteBuffer& reply) {
    const grpc::Status grpc_status = server::ToGrpcStatus(status, context_);
    if (status.ok()) {
      writer_.Finish(reply, grpc_status, &sent_);
    } else {
      writer_.FinishWithError(grpc_status, &sent_);
    }
  }

 private:
  EchoCall(const Method& method, grpc::ServerCompletionQueue& queue)
      : method_(method), queue_(queue), writer_(&context_) {}

  void OnReceived(bool ok) {
    if (!ok) {  // the server shuts down; gRPC sends no done notification for a call that never was
      delete this;
      return;
    }
    method_.in_flight->Add();
    const Method& method = method_;
    grpc::ServerCompletionQueue& queue = queue_;
    method_.handler(*this);  // may free this
    Arm(method, queue);      // registers the next call meanwhile; this client waits for the handler
  }
  void OnSent(bool) { Release(); }
  void OnDone(bool) { Release(); }
  void Release() {
    if (open_.fetch_sub(1) != 1) return;
    server::CallsInFlight& in_flight = *method_.in_flight;
    delete this;
    in_flight.Remove();
  }

  const Method& method_;
  grpc::ServerCompletionQueue& queue_;
  grpc::ServerContext context_;
  grpc::ByteBuffer request_;
  grpc::ServerAsyncResponseWriter<grpc::ByteBuffer> writer_;
  std::atomic<int> open_{2};  // sent, and done
  server::CallEvent<EchoCall> received_{this, &EchoCall::OnReceived};
  server::CallEvent<EchoCall> sent_{this, &EchoCall::OnSent};
  server::CallEvent<EchoCall> done_{this, &EchoCall::OnDone};
};

}  // namespace rope::bench

#endif  // ROPE_TESTS_BENCH_ECHO_CALL_H_
