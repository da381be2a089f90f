#include "client/async_call.h"

#include <grpc/support/time.h>

#include <utility>

#include "client/codec.h"

namespace rope::client {

using std::chrono::microseconds;

std::shared_ptr<AsyncCall> AsyncCall::Start(const Stub& stub, std::shared_ptr<EventQueue> queue,
                                            const RotateRequest& request, RotateCallback callback,
                                            const Attempts& attempts,
                                            std::function<double()> random) {
  auto call = std::make_shared<AsyncCall>(stub, std::move(queue), std::move(callback), attempts,
                                          std::move(random));
  call->queue_->Add(call);
  Result<EncodedRotate> encoded = EncodeRotate(request, call->loans_);
  const std::lock_guard<std::mutex> lock(call->mu_);
  if (encoded.ok()) {
    call->request_ = std::move(encoded->message);
    call->wanted_ = std::move(encoded->wanted);
    call->StartAttempt();
  } else {
    call->outcome_ = encoded.status();
    call->StartAlarm(microseconds(0));  // errors come on the background thread too
  }
  return call;
}

AsyncCall::AsyncCall(const Stub& stub, std::shared_ptr<EventQueue> queue, RotateCallback callback,
                     const Attempts& attempts, std::function<double()> random)
    : queue_(std::move(queue)),
      stub_(stub),
      random_(std::move(random)),
      callback_(std::move(callback)),
      attempts_(attempts) {}

void AsyncCall::Cancel() {
  const std::lock_guard<std::mutex> lock(mu_);
  cancelled_ = true;
  if (attempt_.has_value()) {
    attempt_->context.TryCancel();
  } else if (alarm_.has_value()) {
    alarm_->Cancel();
  }
}

void AsyncCall::OnEvent(bool) {
  {
    const std::lock_guard<std::mutex> lock(mu_);
    Advance();
    if (!outcome_.has_value()) return;
    request_.Clear();
  }
  queue_->WhenReturned(loans_, [this] { RunCallback(); });
}

void AsyncCall::StartAttempt() {
  attempt_.emplace();
  stub_.Start("/rope.v1.RopeService/Rotate", request_, attempts_.Remaining(), queue_->queue(),
              static_cast<EventHandler*>(this), *attempt_);
}

void AsyncCall::StartAlarm(microseconds delay) {
  alarm_.emplace();
  alarm_->Set(
      queue_->queue(),
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_micros(delay.count(), GPR_TIMESPAN)),
      static_cast<EventHandler*>(this));
}

void AsyncCall::Advance() {
  if (outcome_.has_value()) return;  // was never sent
  const Status cancelled(StatusCode::kCancelled, "cancelled by the caller");
  if (!attempt_.has_value()) {
    if (!cancelled_) return StartAttempt();
    outcome_ = cancelled;
    return;
  }
  Result<grpc::ByteBuffer> reply = Stub::ResultOf(*attempt_);
  attempt_.reset();
  if (!reply.ok() && cancelled_) {
    outcome_ = cancelled;
    return;
  }
  if (!reply.ok()) {
    if (const auto delay = attempts_.DelayAfter(reply.status(), random_())) {
      return StartAlarm(*delay);
    }
  }
  outcome_ = std::move(reply);
}

void AsyncCall::RunCallback() {
  {
    // Gone before the queue is told, since it may hold the last copy of the client.
    const RotateCallback callback = std::move(callback_);
    const Result<grpc::ByteBuffer>& reply = *outcome_;
    callback(reply.ok() ? DecodeRotate(*reply, std::move(wanted_))
                        : Result<RotateReply>(reply.status()));
  }
  queue_->Remove(this);
}

Call::Call(std::weak_ptr<AsyncCall> call) : call_(std::move(call)) {}

void Call::Cancel() const {
  if (const auto call = call_.lock()) call->Cancel();
}

}  // namespace rope::client
