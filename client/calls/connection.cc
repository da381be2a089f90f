#include "client/calls/connection.h"

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

// Guesses before encoding whether the request will go through the ring: it does if all its tensors
// are in the arena; only the first is checked. Staged requests are excluded: copying their tensors
// may take longer than the server stays awake.
bool WillUseRing(const RotateRequest& request, const Session& session) {
  return session.ring != nullptr && !request.tensors.empty() &&
         session.region.memory->OffsetOf(request.tensors.front().data, 1).has_value();
}

}  // namespace

Connection::Hooks Connection::DefaultHooks() {
  return {
      .sleep = [](microseconds delay) { std::this_thread::sleep_for(delay); },
      .random =
          [] {
            thread_local std::minstd_rand generator{std::random_device{}()};
            return std::uniform_real_distribution<double>(0, 1)(generator);
          },
  };
}

Connection::Connection(const std::string& target, const ConnectOptions& options, Hooks hooks)
    : connector_(std::make_shared<Connector>(target, options)),
      attempts_max_(options.attempts_max),
      hooks_(std::move(hooks)) {}

Result<grpc::ByteBuffer> Connection::Call(const std::string& method,
                                          const grpc::ByteBuffer& request, bool idempotent,
                                          const CallOptions& options) const {
  Attempts attempts(attempts_max_, options.timeout);
  for (;;) {
    const Result<std::shared_ptr<const Session>> session = connector_->Get();
    if (session.ok()) {
      Result<grpc::ByteBuffer> reply = (*session)->stub.Call(method, request, attempts.Remaining());
      if (reply.ok()) return reply;
      connector_->Note(**session, reply.status());
      if (!WaitForNext(attempts, reply.status(), idempotent)) return reply;
    } else if (!WaitForNext(attempts, session.status(), /*idempotent=*/true)) {
      return session.status();
    }
  }
}

// The retry loop of a synchronous call. Everything runs on the calling thread and under no lock.
// Each attempt encodes the request again, because the session and its region may have changed. An
// attempt by an id that the server has forgotten is made again with the whole request.
Result<RotateReply> Connection::Rotate(const RotateRequest& request,
                                       const CallOptions& options) const {
  Attempts attempts(attempts_max_, options.timeout);
  bool goes_whole = false;
  for (;;) {
    const Result<std::shared_ptr<const Session>> session = connector_->Get();
    if (!session.ok()) {
      if (!WaitForNext(attempts, session.status(), /*idempotent=*/true)) return session.status();
      continue;
    }
    if (WillUseRing(request, **session)) (*session)->ring->WakeServer();
    PreparedUse use = (*session)->prepared->UseOf(request);
    if (goes_whole) use.id = nullptr;
    BorrowedSlices borrowed;
    Result<EncodedRotate> encoded =
        EncodeRotate(request, use, (*session)->region, RouteOf(**session), borrowed);
    if (!encoded.ok()) return encoded.status();
    const Result<ReceivedReply> reply = Send(**session, *encoded, attempts.Remaining());
    encoded->message.Clear();
    // Before the reply is decoded: an output may be the memory that gRPC still borrows.
    (*session)->stub.AwaitReturn(borrowed);
    if (reply.ok()) {
      auto result = reply->ToReply(std::move(encoded->wanted), connector_->outputs());
      PrepareNow(**session, use, attempts.Remaining());
      return result;
    }
    if (use.id != nullptr && IsForgotten(reply.status())) {
      (*session)->prepared->NoteForgotten(use);
      goes_whole = true;
      continue;  // the same attempt: nothing ran
    }
    encoded->staged.NoteFailure(reply.status());
    connector_->Note(**session, reply.status());
    if (!WaitForNext(attempts, reply.status(), encoded->idempotent)) return reply.status();
  }
}

Result<ReceivedReply> Connection::Send(const Session& session, const EncodedRotate& encoded,
                                       microseconds timeout) {
  const bool may_use_ring = !encoded.ring_message.empty();
  if (may_use_ring) {
    auto answer = session.ring->Call(encoded.ring_message, encoded.tensor_bytes, timeout);
    if (answer.has_value()) return *std::move(answer);
  }
  const auto reply =
      session.stub.Call("/rope.v1.RopeService/Rotate",
                        may_use_ring ? BufferOf(encoded.ring_message) : encoded.message, timeout);
  if (!reply.ok()) return reply.status();
  return ReceivedReply::Parse(*reply);
}

bool Connection::WaitForNext(Attempts& attempts, const Status& status, bool idempotent) const {
  const std::optional<microseconds> delay =
      attempts.DelayAfter(status, idempotent, hooks_.random());
  if (!delay.has_value()) return false;
  hooks_.sleep(*delay);
  return true;
}

std::shared_ptr<AsyncCall> Connection::StartRotate(const RotateRequest& request,
                                                   RotateCallback callback,
                                                   const CallOptions& options) const {
  return AsyncCall::Start(connector_, Queue(), request, std::move(callback),
                          Attempts(attempts_max_, options.timeout), hooks_.random);
}

Result<std::shared_ptr<StreamCall>> Connection::OpenStream(const StreamOptions& options) const {
  Result<std::shared_ptr<const Session>> session = connector_->Get();
  if (!session.ok()) return session.status();
  return StreamCall::Open(connector_, *std::move(session), Queue(), options);
}

// Steps: take the session without dialing; run AwaitFence on it; if that fails, tell the connector,
// and ask it again whether a connection that shared the arena was lost. No lock is held.
Status Connection::Fence(const CallOptions& options) const {
  if (has_loop_.load() && loop_->queue()->OnThread()) {
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

const std::shared_ptr<EventQueue>& Connection::Queue() const {
  std::call_once(loop_once_, [this] {
    loop_.emplace();
    has_loop_.store(true);
  });
  return loop_->queue();
}

}  // namespace rope::client
