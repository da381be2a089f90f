#include "client/calls/async_call.h"

#include <grpc/support/time.h>

#include <utility>

#include "client/calls/prepare_call.h"
#include "client/error.h"

namespace rope::client {

using std::chrono::microseconds;

std::shared_ptr<AsyncCall> AsyncCall::Start(std::shared_ptr<Connector> connector,
                                            std::shared_ptr<EventQueue> queue,
                                            const RotateRequest& request, RotateCallback callback,
                                            const Attempts& attempts,
                                            std::function<double()> random) {
  auto call = std::make_shared<AsyncCall>(std::move(connector), std::move(queue),
                                          std::move(callback), attempts, std::move(random));
  call->queue_->Add(call);
  const proto::MutexLock lock(&call->mu_);
  call->StartAttempt(&request);
  return call;
}

AsyncCall::AsyncCall(std::shared_ptr<Connector> connector, std::shared_ptr<EventQueue> queue,
                     RotateCallback callback, const Attempts& attempts,
                     std::function<double()> random)
    : queue_(std::move(queue)),
      connector_(std::move(connector)),
      random_(std::move(random)),
      callback_(std::move(callback)),
      attempts_(attempts) {}

// TryCancel and Alarm::Cancel only hasten the outstanding event; OnEvent then ends the call. Both
// are called under mu_, which keeps attempt_ and alarm_ in place.
void AsyncCall::Cancel() {
  const proto::MutexLock lock(&mu_);
  cancelled_ = true;
  if (attempt_.has_value()) {
    attempt_->context.TryCancel();
  } else if (alarm_.has_value()) {
    alarm_->Cancel();
  }
}

// Advance runs under mu_. The callback does not: RunCallback runs after the unlock, once gRPC has
// returned the borrowed slices. No event is outstanding then, so only Cancel can still take mu_.
void AsyncCall::OnEvent(bool) {
  {
    const proto::MutexLock lock(&mu_);
    Advance();
    if (!outcome_.has_value()) return;
    encoded_.message.Clear();
  }
  queue_->WhenReturned(borrowed_, [this] { RunCallback(); });
}

// Holds mu_ throughout. Get may redial the connection, and EncodeRotate may copy tensors to staging
// memory; a concurrent Cancel waits for both. A message that names a region (uses_region) or an id
// is valid on its session only, so the request is kept and encoded again for the next attempt.
void AsyncCall::StartAttempt(const RotateRequest* request) {
  Result<std::shared_ptr<const Session>> session = connector_->Get();
  if (!session.ok()) {
    unsent_ = session.status();
    if (request != nullptr && !request_.has_value()) request_ = *request;
    return StartAlarm(microseconds(0));
  }
  session_ = *std::move(session);
  if (request != nullptr) {
    use_ = session_->prepared->UseOf(*request);
    if (goes_whole_) use_.id = nullptr;
    Result<EncodedRotate> encoded =
        EncodeRotate(*request, use_, session_->region, Route::kRpc, borrowed_);
    if (!encoded.ok()) {
      outcome_ = encoded.status();
      return StartAlarm(microseconds(0));  // errors are delivered on the background thread, too
    }
    encoded_ = *std::move(encoded);
    if (encoded_.uses_region || use_.id != nullptr) Keep(*request);
  }
  attempt_.emplace();
  session_->stub.Start("/rope.v1.RopeService/Rotate", encoded_.message, attempts_.Remaining(),
                       queue_->queue(), static_cast<EventHandler*>(this), *attempt_);
}

// A request that names no rotation is kept as its preparation with its values, if it has one: its
// own norm weights are the caller's, who may have freed them by now.
void AsyncCall::Keep(const RotateRequest& request) {
  if (request_.has_value()) return;
  kept_preparation_ = use_.preparation;
  const bool is_whole = request.prepared.has_value() || use_.preparation == nullptr;
  request_ = is_whole ? request : use_.preparation->With(RotateValues(request));
}

void AsyncCall::StartNext() {
  StartAttempt(request_.has_value() ? &*request_ : nullptr);
}

void AsyncCall::StartAlarm(microseconds delay) {
  alarm_.emplace();
  alarm_->Set(
      queue_->queue(),
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_micros(delay.count(), GPR_TIMESPAN)),
      static_cast<EventHandler*>(this));
}

// Which event this is follows from the state: an outcome that was known at once (its alarm), an
// alarm before the next attempt (no attempt_), or the end of attempt_. Holds mu_.
void AsyncCall::Advance() {
  if (outcome_.has_value()) return;  // the alarm of StartAttempt: nothing was sent
  if (!attempt_.has_value()) {
    if (cancelled_) return EndCancelled(Status());
    if (!unsent_.has_value()) return StartNext();
    return TryAgain(*std::exchange(unsent_, std::nullopt), /*idempotent=*/true);
  }
  Result<grpc::ByteBuffer> reply = Stub::ResultOf(*attempt_);
  attempt_.reset();
  if (reply.ok()) {
    StartPrepare(session_, queue_, use_);
    outcome_ = std::move(reply);
    return;
  }
  if (use_.id != nullptr && IsForgotten(reply.status())) return StartWhole();
  encoded_.staged.NoteFailure(reply.status());
  if (cancelled_) return EndCancelled(reply.status());
  connector_->Note(*session_, reply.status());
  TryAgain(reply.status(), encoded_.idempotent);
}

void AsyncCall::StartWhole() {
  session_->prepared->NoteForgotten(use_);
  goes_whole_ = true;
  if (cancelled_) return EndCancelled(Status());
  StartNext();
}

void AsyncCall::TryAgain(const Status& status, bool idempotent) {
  if (const auto delay = attempts_.DelayAfter(status, idempotent, random_())) {
    return StartAlarm(*delay);
  }
  outcome_ = status;
}

void AsyncCall::EndCancelled(const Status& last) {
  outcome_ =
      MakeError(Reason::kCancelled, "cancelled by the caller", last.detail().may_have_executed);
}

void AsyncCall::RunCallback() {
  {
    // Destroyed before Remove: it may hold the last copy of the client, whose queue this is.
    const RotateCallback callback = std::move(callback_);
    std::optional<Result<grpc::ByteBuffer>> reply;
    std::vector<WantedTensor> wanted;
    {
      const proto::MutexLock lock(&mu_);
      reply = std::move(outcome_);
      wanted = std::move(encoded_.wanted);
    }
    callback(reply->ok() ? DecodeRotate(**reply, std::move(wanted), connector_->outputs())
                         : Result<RotateReply>(reply->status()));
  }
  queue_->Remove(this);
}

Call::Call(std::weak_ptr<AsyncCall> call) : call_(std::move(call)) {}

void Call::Cancel() const {
  if (const auto call = call_.lock()) call->Cancel();
}

}  // namespace rope::client
