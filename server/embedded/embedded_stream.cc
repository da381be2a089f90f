#include "server/embedded/embedded_stream.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "client/calls/stream_call.h"
#include "client/codec/preparation.h"
#include "client/codec/rotate_messages.h"
#include "client/error.h"
#include "client/transport/waiter.h"

namespace rope::embedded {
namespace {

SteadyTime DeadlineOf(const client::StreamOptions& options) {
  if (!options.timeout.has_value()) return SteadyTime::max();
  return std::chrono::steady_clock::now() + client::BoundedTimeout(*options.timeout);
}

// What bounds count of a request. A size that is not defined counts nothing: the call fails. Calls
// with an open axis count its bound.
int64_t BytesOf(const client::RotateRequest& request) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 2;
  int64_t bytes = 0;
  if (request.prepared.has_value()) {
    const auto& state = client::PreparedState::Of(*request.prepared);
    if (state == nullptr) return 0;
    for (const auto& tensor : state->preparation->tensors()) bytes += tensor.bytes;
    return bytes;
  }
  for (size_t i = 0; i < request.tensors.size(); ++i) {
    const Result<int64_t> size = client::TensorBytes(request.tensors[i], i);
    if (size.ok()) bytes += std::min(*size, kMost - bytes);
  }
  return bytes;
}

}  // namespace

EmbeddedStream::EmbeddedStream(std::shared_ptr<CallbackThread> calls,
                               const client::StreamOptions& options)
    : calls_(std::move(calls)), options_(options), deadline_(DeadlineOf(options)) {}

Status EmbeddedStream::Rotate(const client::RotateRequest& request, client::RotateCallback callback,
                              uint64_t* sequence) {
  Result<std::unique_ptr<const client::KeptRequest>> kept = client::KeptRequest::Of(request);
  if (!kept.ok()) return kept.status();
  const int64_t bytes = BytesOf(request);
  CallbackThread::Call call = {.request = *std::move(kept),
                               .deadline = deadline_,
                               .callback = {},
                               .cancelled = NotCancelled(),
                               .lease = calls_->rotations().ids().Acquire()};
  const proto::MutexLock lock(&mutex_);
  if (Status status = TakeRoom(bytes); !status.ok()) return status;
  const uint64_t number = next_sequence_++;
  if (sequence != nullptr) *sequence = number;
  unanswered_[number] = call.cancelled;
  call.callback = [self = shared_from_this(), number, bytes,
                   callback = std::move(callback)](Result<client::RotateReply> reply) {
    self->Answer(number, bytes, callback, std::move(reply));
  };
  if (calls_->Add(std::move(call))) return {};
  unanswered_.erase(number);
  --taken_.requests;
  taken_.bytes -= bytes;
  return client::CancelledByCaller(/*may_have_executed=*/false);
}

// In a callback it fails where it would wait: room becomes free on that thread only.
Status EmbeddedStream::TakeRoom(int64_t bytes) {
  const bool in_callback = calls_->IsCurrent();
  while (true) {
    if (Status status = End(); !status.ok()) return status;
    if (finishing_) {
      return client::MakeError(Reason::kWrongState, "stream", "a request after its end",
                               "an open stream");
    }
    const int64_t requests = taken_.requests - (in_callback ? credit_.requests : 0);
    const int64_t used = taken_.bytes - (in_callback ? credit_.bytes : 0);
    if (client::HasRoomFor(bytes, requests, used, options_)) break;
    if (in_callback) return client::StreamIsFull(options_, taken_.requests, taken_.bytes);
    changed_.Wait(&mutex_);
  }
  ++taken_.requests;
  taken_.bytes += bytes;
  return {};
}

void EmbeddedStream::Answer(uint64_t sequence, int64_t bytes,
                            const client::RotateCallback& callback,
                            Result<client::RotateReply> reply) {
  {
    const proto::MutexLock lock(&mutex_);
    unanswered_.erase(sequence);
    credit_ = {1, bytes};
  }
  callback(std::move(reply));
  const proto::MutexLock lock(&mutex_);
  credit_ = {};
  --taken_.requests;
  taken_.bytes -= bytes;
  changed_.SignalAll();
}

void EmbeddedStream::CancelRequest(uint64_t sequence) {
  const proto::MutexLock lock(&mutex_);
  const auto found = unanswered_.find(sequence);
  if (found != unanswered_.end()) found->second->store(true);
}

Status EmbeddedStream::Finish() {
  if (calls_->IsCurrent()) return client::InCallback("Finish");
  const proto::MutexLock lock(&mutex_);
  finishing_ = true;
  changed_.SignalAll();
  while (taken_.requests > 0) changed_.Wait(&mutex_);
  return End();
}

Status EmbeddedStream::End() {
  if (cancelled_ || calls_->IsClosed()) {
    return client::CancelledByCaller(/*may_have_executed=*/false);
  }
  if (std::chrono::steady_clock::now() < deadline_) return {};
  return client::MakeError(Reason::kDeadline, "stream: its timeout has passed");
}

void EmbeddedStream::CancelAll() {
  cancelled_ = true;
  for (const auto& [sequence, cancelled] : unanswered_) cancelled->store(true);
  changed_.SignalAll();
}

void EmbeddedStream::Cancel() {
  const proto::MutexLock lock(&mutex_);
  CancelAll();
}

void EmbeddedStream::Abandon() {
  const proto::MutexLock lock(&mutex_);
  CancelAll();
  if (calls_->IsCurrent()) return;
  while (taken_.requests > 0) changed_.Wait(&mutex_);
}

}  // namespace rope::embedded
