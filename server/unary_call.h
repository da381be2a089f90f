// UnaryCall: one unary RPC with bytes in and bytes out, from being armed to being freed. The same
// object for every unary method; what differs is the handler.
//
//   armed -> received: runs the handler, arms its successor -> Finish (any thread, once) -> sent
//
// The call frees itself when both its last step and gRPC's done notification have come back.
//
// Threading:  Steps run on the queue's thread; Finish may be called from any.
// Ownership:  Owns itself from Arm on.
#ifndef ROPE_SERVER_UNARY_CALL_H_
#define ROPE_SERVER_UNARY_CALL_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/async_unary_call.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/mutex.h"
#include "server/grpc_deadline.h"
#include "server/grpc_status.h"
#include "server/poll_loop.h"
#include "server/session.h"

namespace rope::server {

// Calls that were received and are not freed yet.
//
// Threading:  Thread-safe.
class CallsInFlight {
 public:
  void Add() {
    proto::MutexLock lock(&mutex_);
    ++count_;
  }
  void Remove() {
    proto::MutexLock lock(&mutex_);
    if (--count_ == 0) none_.SignalAll();
  }
  int64_t count() const {
    proto::MutexLock lock(&mutex_);
    return count_;
  }
  // Waits until there are none; false: some are left after `timeout`.
  bool AwaitNone(absl::Duration timeout) {
    const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout);
    proto::MutexLock lock(&mutex_);
    while (count_ != 0) {
      const auto left = end - std::chrono::steady_clock::now();
      if (left <= left.zero()) return false;
      none_.WaitFor(&mutex_, left);
    }
    return true;
  }

 private:
  mutable proto::Mutex mutex_;
  proto::CondVar none_;
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

class UnaryCall {
 public:
  // Asks gRPC for the next call of the method.
  using Request = std::function<void(grpc::ServerContext*, grpc::ByteBuffer*,
                                     grpc::ServerAsyncResponseWriter<grpc::ByteBuffer>*,
                                     grpc::ServerCompletionQueue*, void* tag)>;
  // Must lead to one Finish, now or later, on any thread.
  using Handler = std::function<void(UnaryCall&)>;

  // A method as the server serves it; outlives its calls.
  struct Method {
    Request request;
    Handler handler;
    CallsInFlight* in_flight = nullptr;
  };

  // Waits for one call of `method` on `queue`, and for the next when it has come.
  static void Arm(const Method& method, grpc::ServerCompletionQueue& queue) {
    auto call = std::unique_ptr<UnaryCall>(new UnaryCall(method, queue));  // owned by itself below
    UnaryCall& armed = *call.release();
    armed.context_.AsyncNotifyWhenDone(&armed.done_);
    method.request(&armed.context_, &armed.request_, &armed.writer_, &queue, &armed.received_);
  }

  uint64_t session() const { return SessionOfPeer(context_.peer()); }
  // Until the client gives up.
  absl::Duration time_left() const { return TimeLeft(context_); }
  grpc::ByteBuffer& request() { return request_; }
  // True once the client has gone or given up; safe to read after the call was freed.
  const std::shared_ptr<std::atomic<bool>>& cancelled() const { return cancelled_; }

  // Answers. Nothing of the call may be touched afterwards.
  void Finish(const absl::Status& status, const grpc::ByteBuffer& reply) {
    const grpc::Status grpc_status = ToGrpcStatus(status, context_);
    if (status.ok()) {
      writer_.Finish(reply, grpc_status, &sent_);
    } else {
      writer_.FinishWithError(grpc_status, &sent_);
    }
  }

 private:
  UnaryCall(const Method& method, grpc::ServerCompletionQueue& queue)
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
    Arm(method, queue);      // others are armed meanwhile, and the client waits for the handler
  }
  void OnSent(bool) { Release(); }
  void OnDone(bool) {
    if (context_.IsCancelled()) cancelled_->store(true, std::memory_order_relaxed);
    Release();
  }
  void Release() {
    if (open_.fetch_sub(1) != 1) return;
    CallsInFlight& in_flight = *method_.in_flight;
    delete this;
    in_flight.Remove();
  }

  const Method& method_;
  grpc::ServerCompletionQueue& queue_;
  grpc::ServerContext context_;
  grpc::ByteBuffer request_;
  grpc::ServerAsyncResponseWriter<grpc::ByteBuffer> writer_;
  const std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);
  std::atomic<int> open_{2};  // sent and done
  CallEvent<UnaryCall> received_{this, &UnaryCall::OnReceived};
  CallEvent<UnaryCall> sent_{this, &UnaryCall::OnSent};
  CallEvent<UnaryCall> done_{this, &UnaryCall::OnDone};
};

}  // namespace rope::server

#endif  // ROPE_SERVER_UNARY_CALL_H_
