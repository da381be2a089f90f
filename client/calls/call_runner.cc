#include "client/calls/call_runner.h"

#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/calls/fence.h"
#include "client/calls/prepare_call.h"
#include "client/codec/borrowed_slices.h"
#include "client/codec/codec.h"
#include "client/error.h"

namespace rope::client {
namespace {

using std::chrono::microseconds;

}  // namespace

CallRunner::Hooks CallRunner::DefaultHooks() {
  return {
      .sleep = [](microseconds delay) { std::this_thread::sleep_for(delay); },
      .random =
          [] {
            thread_local std::minstd_rand generator{std::random_device{}()};
            return std::uniform_real_distribution<double>(0, 1)(generator);
          },
  };
}

CallRunner::CallRunner(const std::string& target, const ConnectOptions& options, Hooks hooks)
    : connector_(std::make_shared<Connector>(target, options)),
      attempts_max_(options.attempts_max),
      hooks_(std::move(hooks)) {}

// Everything runs on the calling thread and under no lock. Each attempt gets the session of its
// time, because the connection may have been dialed again.
template <typename Reply, typename Attempt>
Result<Reply> CallRunner::Retry(const CallOptions& options, const Attempt& attempt) const {
  Attempts attempts(attempts_max_, options.timeout);
  for (;;) {
    const Result<std::shared_ptr<const Session>> session = connector_->Get();
    if (!session.ok()) {
      if (!WaitForNext(attempts, session.status(), /*idempotent=*/true)) return session.status();
      continue;
    }
    Outcome<Reply> outcome = attempt(**session, attempts);
    if (outcome.reply.ok()) return std::move(outcome.reply);
    connector_->Note(**session, outcome.reply.status());
    if (!WaitForNext(attempts, outcome.reply.status(), outcome.idempotent)) {
      return std::move(outcome.reply);
    }
  }
}

Result<grpc::ByteBuffer> CallRunner::Call(const std::string& method,
                                          const grpc::ByteBuffer& request, bool idempotent,
                                          const CallOptions& options) const {
  return Retry<grpc::ByteBuffer>(options, [&](const Session& session, const Attempts& attempts) {
    return Outcome<grpc::ByteBuffer>{session.stub.Call(method, request, attempts.Remaining()),
                                     idempotent};
  });
}

Result<RotateReply> CallRunner::Rotate(const RotateRequest& request,
                                       const CallOptions& options) const {
  return Retry<RotateReply>(options, [&](const Session& session, const Attempts& attempts) {
    session.rotate->WakeServerFor(request);
    return RotateOnce(session, request, attempts);
  });
}

// Each attempt encodes the request again, because the session and its region may have changed. If
// the server has forgotten the request's id, nothing has run, and the same attempt goes on with the
// whole request.
CallRunner::Outcome<RotateReply> CallRunner::RotateOnce(const Session& session,
                                                        const RotateRequest& request,
                                                        const Attempts& attempts) const {
  for (bool goes_whole = false;; goes_whole = true) {
    PreparedUse use = session.prepared->UseOf(request);
    if (goes_whole) use.id = nullptr;
    BorrowedSlices borrowed;
    Result<EncodedRotate> encoded =
        EncodeRotate(request, use, session.region, session.rotate->route(), borrowed);
    if (!encoded.ok()) return {encoded.status(), /*idempotent=*/false};
    const Result<ReceivedReply> reply =
        session.rotate->Rotate(*encoded, borrowed, attempts.Remaining());
    if (reply.ok()) {
      auto result = reply->ToReply(std::move(encoded->wanted), connector_->outputs());
      PrepareNow(session, use, attempts.Remaining());
      return {std::move(result), /*idempotent=*/false};
    }
    if (use.id == nullptr || !IsForgotten(reply.status())) {
      encoded->staged.NoteFailure(reply.status());
      return {reply.status(), encoded->idempotent};
    }
    session.prepared->NoteForgotten(use);
  }
}

bool CallRunner::WaitForNext(Attempts& attempts, const Status& status, bool idempotent) const {
  const std::optional<microseconds> delay =
      attempts.DelayAfter(status, idempotent, hooks_.random());
  if (!delay.has_value()) return false;
  hooks_.sleep(*delay);
  return true;
}

std::shared_ptr<AsyncCall> CallRunner::StartRotate(const RotateRequest& request,
                                                   RotateCallback callback,
                                                   const CallOptions& options) const {
  return AsyncCall::Start(connector_, Queue(), request, std::move(callback),
                          Attempts(attempts_max_, options.timeout), hooks_.random);
}

Result<std::shared_ptr<StreamCall>> CallRunner::OpenStream(const StreamOptions& options) const {
  Result<std::shared_ptr<const Session>> session = connector_->Get();
  if (!session.ok()) return session.status();
  return StreamCall::Open(connector_, *std::move(session), Queue(), options);
}

// Steps: take the session without dialing; run AwaitFence on it; if that fails, tell the connector,
// and ask it again whether a connection that shared the arena was lost. No lock is held.
Status CallRunner::Fence(const CallOptions& options) const {
  if (IsCallbackThreadOf(*connector_->callback_owner())) {
    return MakeError(Reason::kWrongState, "Fence", "a call in a callback", "one on another thread");
  }
  const Result<std::shared_ptr<const Session>> session = connector_->GetForFence();
  if (!session.ok()) return session.status();
  const Region& region = (*session)->region;
  if (region.ids == nullptr || region.is_staging) return {};
  const Status status = AwaitFence((*session)->stub, *region.ids, options.timeout);
  if (status.ok()) return status;
  connector_->Note(**session, status);
  const Result<std::shared_ptr<const Session>> now =
      connector_->GetForFence();  // UNAVAILABLE if the failure was a lost connection
  if (!now.ok()) return now.status();
  if (status.code() != StatusCode::kNotFound) return status;
  return MakeError(Reason::kConnectionLost, absl::StrCat("fence: ", status.message()));
}

const std::shared_ptr<EventQueue>& CallRunner::Queue() const {
  std::call_once(loop_once_, [this] { loop_.emplace(connector_->callback_owner()); });
  return loop_->queue();
}

}  // namespace rope::client
