#include "client/calls/async_call.h"

#include <grpc/support/time.h>

#include <utility>

#include "client/calls/prepare_call.h"
#include "client/codec/preparation.h"
#include "client/error.h"
#include "kernels/status_macros.h"

namespace rope::client {

using std::chrono::microseconds;

AsyncCall::AsyncCall(std::shared_ptr<Connector> connector, std::shared_ptr<EventQueue> queue,
                     RotateCallback callback, Attempts attempts, std::function<double()> random)
    : queue_(std::move(queue)),
      connector_(std::move(connector)),
      random_(std::move(random)),
      callback_(std::move(callback)),
      attempts_(std::move(attempts)) {}

void AsyncCall::Start(const RotateRequest& request) {
  queue_->Add(shared_from_this());
  if (Status status = CheckMetadata(attempts_.metadata()); !status.ok()) {
    outcome_ = std::move(status);
    return StartAlarm(microseconds(0));
  }
  StartAttempt(&request);
}

// Cancelling only hastens the outstanding event, whose handler then ends the call. The ring is told
// without mu_, because it takes its own lock.
void AsyncCall::Cancel() {
  std::shared_ptr<RingCompletions> ring;
  RingCompletions::Ticket ticket;
  {
    const proto::MutexLock lock(&mu_);
    cancelled_ = true;
    ring = ring_;
    ticket = ticket_;
    if (rpc_.has_value()) {
      rpc_->context.TryCancel();
    } else if (ring == nullptr && alarm_.has_value()) {
      alarm_->Cancel();
    }
  }
  if (ring != nullptr) ring->Cancel(ticket);
}

bool AsyncCall::IsCancelled() {
  const proto::MutexLock lock(&mu_);
  return cancelled_;
}

// What Cancel needs is set before the attempt starts. From then on another thread may handle its
// end: only locals are used.
void AsyncCall::StartAttempt(const RotateRequest* request) {
  const auto self = shared_from_this();  // the call may end before this function does
  Result<std::shared_ptr<const Link>> link = connector_->Get();
  if (!link.ok()) {
    unsent_ = link.status();
    const Status status = request == nullptr ? Status() : Keep(*request);
    if (!status.ok()) outcome_ = status;
    return StartAlarm(microseconds(0));
  }
  link_ = *std::move(link);
  if (request != nullptr) {
    if (Status status = Encode(*request); !status.ok()) {
      outcome_ = std::move(status);
      return StartAlarm(microseconds(0));  // errors are delivered on the background thread, too
    }
  }
  const RotateTransport& transport = *link_->rotate;
  if (const auto ticket = transport.Reserve(encoded_)) return StartInRing(*ticket);
  const proto::MutexLock lock(&mu_);
  rpc_.emplace();
  if (cancelled_) rpc_->context.TryCancel();
  transport.Start(encoded_, attempts_.Next(), queue_->queue(), static_cast<EventHandler*>(this),
                  *rpc_);
}

void AsyncCall::StartInRing(const RingCompletions::Ticket& ticket) {
  const std::shared_ptr<RingCompletions> ring = link_->rotate->completions();
  bool cancelled = false;
  {
    const proto::MutexLock lock(&mu_);
    ring_ = ring;
    ticket_ = ticket;
    cancelled = cancelled_;
  }
  if (cancelled) ring->Cancel(ticket);
  ring->Submit(ticket, encoded_.ring_message, attempts_.Next().timeout,
               [self = shared_from_this()](Result<ReceivedReply> reply) {
                 self->OnReply(std::move(reply));
               });
}

// The RPC is destroyed before its reply is passed on: it may hold slices of the request.
std::optional<Result<ReceivedReply>> AsyncCall::TakeReply() {
  const proto::MutexLock lock(&mu_);
  if (!rpc_.has_value()) return std::nullopt;
  Result<ReceivedReply> reply = RotateTransport::ReplyOf(*rpc_);
  rpc_.reset();
  return reply;
}

// A message that names a region (uses_region) or an id is valid on its link only, so the request
// is kept and encoded again for the next attempt.
Status AsyncCall::Encode(const RotateRequest& request) {
  const auto encode = is_forgotten_ ? &EncodeWhole : &EncodeRotate;
  ROPE_ASSIGN_OR_RETURN(encoded_,
                        encode(request, link_->region, link_->rotate->route(), borrowed_));
  if (encoded_.uses_region || request.prepared.has_value()) return Keep(request);
  return {};
}

Status AsyncCall::Keep(const RotateRequest& request) {
  if (kept_ != nullptr) return {};
  ROPE_ASSIGN_OR_RETURN(kept_, client::Keep(request, link_ == nullptr ? Region() : link_->region));
  return {};
}

void AsyncCall::StartAlarm(microseconds delay) {
  const auto self = shared_from_this();
  const proto::MutexLock lock(&mu_);
  const auto due = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                                gpr_time_from_micros(cancelled_ ? 0 : delay.count(), GPR_TIMESPAN));
  alarm_.emplace();
  alarm_->Set(queue_->queue(), due, static_cast<EventHandler*>(this));
}

// Which event this is follows from the state: the end of an RPC, or the alarm of an outcome that
// was known at once, of an attempt that was not sent, or of the wait before the next attempt.
void AsyncCall::OnEvent(bool) {
  const auto self = shared_from_this();
  if (auto reply = TakeReply()) return OnReply(*std::move(reply));
  if (outcome_.has_value()) return End(*std::exchange(outcome_, std::nullopt));
  if (IsCancelled()) return End(CancelledByCaller(/*may_have_executed=*/false));
  if (!unsent_.has_value()) return StartAttempt(kept_ == nullptr ? nullptr : &kept_->request);
  TryAgain(*std::exchange(unsent_, std::nullopt), /*idempotent=*/true);
}

void AsyncCall::OnReply(Result<ReceivedReply> reply) {
  {
    const proto::MutexLock lock(&mu_);
    ring_ = nullptr;
  }
  if (reply.ok()) return End(std::move(reply));
  const bool was_by_id = !is_forgotten_ && kept_ != nullptr && kept_->request.prepared.has_value();
  if (was_by_id && IsForgotten(reply.status())) {  // it is made again with the whole request
    is_forgotten_ = true;
    if (IsCancelled()) return End(CancelledByCaller(/*may_have_executed=*/false));
    StartPrepareAgain(link_, queue_, *kept_->request.prepared, attempts_.metadata(), random_);
    return StartAttempt(&kept_->request);
  }
  encoded_.staged.NoteFailure(reply.status());
  if (IsCancelled()) {
    return End(CancelledByCaller(reply.status().detail().may_have_executed));
  }
  connector_->Note(*link_, reply.status());
  TryAgain(reply.status(), encoded_.idempotent);
}

void AsyncCall::TryAgain(const Status& status, bool idempotent) {
  if (const auto delay = attempts_.DelayAfter(status, idempotent, random_())) {
    return StartAlarm(*delay);
  }
  End(attempts_.EndWith(status));
}

void AsyncCall::End(Result<ReceivedReply> outcome) {
  outcome_ = std::move(outcome);
  encoded_.message.Clear();  // else its slices would never be returned
  queue_->WhenReturned(borrowed_, [this] { RunCallback(); });
}

void AsyncCall::RunCallback() {
  {
    // Destroyed before Remove: it may hold the last copy of the client, whose queue this is.
    const RotateCallback callback = std::move(callback_);
    const Result<ReceivedReply> reply = *std::exchange(outcome_, std::nullopt);
    callback(reply.ok() ? reply->ToReply(std::move(encoded_.wanted), connector_->outputs())
                        : Result<RotateReply>(reply.status()));
  }
  queue_->Remove(this);
}

}  // namespace rope::client
