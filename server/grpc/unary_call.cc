#include "server/grpc/unary_call.h"

#include <utility>

#include "server/error.h"
#include "server/grpc/grpc_status.h"
#include "server/grpc/limits.h"

namespace rope::server {

void UnaryCall::Arm(const Method& method, grpc::ServerCompletionQueue& queue, int calls) {
  ArmUpTo(calls, std::make_shared<Armed>(Armed{method, queue, calls}));
}

void UnaryCall::ArmUpTo(int count, const std::shared_ptr<Armed>& armed) {
  for (; armed->count < count; ++armed->count) {
    auto owned = std::unique_ptr<UnaryCall>(new UnaryCall(armed));  // owns itself below
    UnaryCall& call = *owned.release();
    call.context_.AsyncNotifyWhenDone(&call.done_);
    armed->method.request(&call.context_, &call.stream_, &armed->queue, &call.arrived_);
  }
}

// The headers have come. Three references begin with the call (open_ == 3): the read that starts
// here, the last step (Finish), and the done notification. Each event that comes back releases one.
void UnaryCall::OnArrived(bool ok) {
  if (!ok) {  // shutdown before a call came: gRPC sends no done notification
    delete this;
    return;
  }
  session_ = SessionOfPeer(context_.peer());
  method_.receiving->Enter(*this, session_);
  stream_.Read(&message_, &read_);
  // Arming takes time for which this client would wait, so OnSent arms successors, after the reply.
  // Slow calls must not leave the method without armed calls: below half, arm here.
  --armed_->count;
  ArmUpTo((armed_->wanted + 1) / 2, armed_);
}

// Runs on the queue's thread, while EndTransfer may run on the thread of MemoryWatch. Both call
// Claim: the one that takes the call out of kReading answers it, the other does nothing. Leave
// comes first, so that Transfers cannot choose this read any more.
void UnaryCall::OnRead(bool ok) {
  method_.receiving->Leave(*this);
  if (Claim(State::kHandled)) Handle(ok);  // else EndTransfer has answered
  Release();
}

void UnaryCall::Handle(bool ok) {
  method_.in_flight->Add();
  if (ok) {
    method_.handler(*this);
  } else {
    Finish(InvalidField("request", "no message", "one"), {});
  }
}

void UnaryCall::Finish(const absl::Status& status, const grpc::ByteBuffer& reply, Permit permit) {
  permit_ = std::move(permit);
  if (permit_.bytes() >= limits::kListedReplyBytesMin) untaken_.Enter(method_.untaken, session_);
  const grpc::Status grpc_status = ToGrpcStatus(status, context_);
  if (status.ok()) {
    stream_.WriteAndFinish(reply, grpc::WriteOptions(), grpc_status, &sent_);
  } else {
    stream_.Finish(grpc_status, &sent_);
  }
}

void UnaryCall::EndTransfer(const absl::Status& status) {
  if (!Claim(State::kEnded)) return;
  stream_.Finish(ToGrpcStatus(status, context_), &sent_);
}

void UnaryCall::OnSent(bool ok) {
  untaken_.Leave();
  permit_ = Permit();
  if (ok) ArmUpTo(armed_->wanted, armed_);  // not ok: the server may be shutting down
  Release();
}

void UnaryCall::OnDone(bool) {
  if (context_.IsCancelled()) cancelled_->store(true, std::memory_order_relaxed);
  Release();
}

bool UnaryCall::Claim(State state) {
  State reading = State::kReading;
  return state_.compare_exchange_strong(reading, state);
}

// The last reference deletes the call. Only handled calls were counted in `in_flight`; the count
// falls after the deletion, so that a drained server has no call left.
void UnaryCall::Release() {
  if (open_.fetch_sub(1) != 1) return;
  CallsInFlight& in_flight = *method_.in_flight;
  const bool was_counted = state_.load() == State::kHandled;
  delete this;
  if (was_counted) in_flight.Remove();
}

}  // namespace rope::server
