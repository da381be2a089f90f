#include "server/grpc/unary_call.h"

#include <utility>

#include "server/error.h"

namespace rope::server {

void UnaryCall::Arm(const Method& method, CallQueue& queue, int calls) {
  CallArming::Start<UnaryCall>(queue, method.request, calls, method);
}

// Only handled calls count as in flight.
void UnaryCall::OnRead(bool ok) {
  if (!read_ended()) {
    parts_.in_flight->Add();
    is_counted_ = true;
    if (ok) {
      method_.handler(*this);
    } else {
      FinishWithoutMessage(InvalidField("request", "no message", "one"));
    }
  }
  ReleaseAndCount();
}

void UnaryCall::Finish(const absl::Status& status, const grpc::ByteBuffer& reply, Permit permit) {
  permit_ = std::move(permit);
  connection().OweReply(permit_.bytes());
  if (!status.ok()) return StartFinish(status);
  stream_.WriteAndFinish(reply, grpc::WriteOptions(), grpc::Status::OK, &ended_);
}

void UnaryCall::OnEnded(bool ok) {
  connection().PayReply(permit_.bytes(), ok);
  permit_ = Permit();
  if (ok) arming_->Refill();  // not ok: the server may be shutting down
  ReleaseAndCount();
}

// The count falls after the deletion, so that a drained server has no call left.
void UnaryCall::ReleaseAndCount() {
  CallsInFlight& in_flight = *parts_.in_flight;
  const bool was_counted = is_counted_;
  if (Release() && was_counted) in_flight.Remove();
}

}  // namespace rope::server
