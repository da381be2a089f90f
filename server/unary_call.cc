#include "server/unary_call.h"

#include <utility>

#include "server/grpc_status.h"

namespace rope::server {

void UnaryCall::Arm(const Method& method, grpc::ServerCompletionQueue& queue) {
  auto call = std::unique_ptr<UnaryCall>(new UnaryCall(method, queue));  // owned by itself below
  UnaryCall& armed = *call.release();
  armed.context_.AsyncNotifyWhenDone(&armed.done_);
  method.request(&armed.context_, &armed.stream_, &queue, &armed.arrived_);
}

void UnaryCall::OnArrived(bool ok) {
  if (!ok) {  // the server shuts down; gRPC sends no done notification for a call that never was
    delete this;
    return;
  }
  session_ = SessionOfPeer(context_.peer());
  method_.receiving->Enter(*this, session_);
  stream_.Read(&message_, &read_);
  Arm(method_, queue_);
}

void UnaryCall::OnRead(bool ok) {
  method_.receiving->Leave(*this);
  if (!Claim(State::kHandled)) {  // it was ended before
    Release();
    return;
  }
  method_.in_flight->Add();
  if (ok) {
    method_.handler(*this);
  } else {
    Finish(absl::InvalidArgumentError("request: got no message, want one"), {});
  }
  Release();
}

void UnaryCall::Finish(const absl::Status& status, const grpc::ByteBuffer& reply, Permit permit) {
  permit_ = std::move(permit);
  const grpc::Status grpc_status = ToGrpcStatus(status, context_);
  if (status.ok()) {
    stream_.WriteAndFinish(reply, grpc::WriteOptions(), grpc_status, &sent_);
  } else {
    stream_.Finish(grpc_status, &sent_);
  }
}

void UnaryCall::EndRead(const absl::Status& status) {
  if (!Claim(State::kEnded)) return;
  stream_.Finish(ToGrpcStatus(status, context_), &sent_);
}

void UnaryCall::OnSent(bool) {
  permit_ = Permit();
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

void UnaryCall::Release() {
  if (open_.fetch_sub(1) != 1) return;
  CallsInFlight& in_flight = *method_.in_flight;
  const bool was_counted = state_.load() == State::kHandled;
  delete this;
  if (was_counted) in_flight.Remove();
}

}  // namespace rope::server
