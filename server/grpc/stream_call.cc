#include "server/grpc/stream_call.h"

#include <algorithm>
#include <utility>

#include "server/engine/batcher.h"
#include "server/grpc/grpc_status.h"
#include "server/limits.h"
#include "server/request/request.h"

namespace rope::server {
namespace {

// A stream reads no more while this much is unanswered or not taken by the client: enough for many
// prefills in flight, little enough for many clients that never read.
constexpr int64_t kBytesMax = 64 * limits::kMiB;
constexpr int64_t kRequestsMax = 1024;
// Errors that the client has not taken. No permit counts their 1.2 KiB each.
constexpr int64_t kErrorsMax = 64;

}  // namespace

// Lock order: OpenStreams::mutex_ -> StreamCall::mutex_ -> MessageReads::mutex_ (server/README.md).
//
// Every event after OnArrived and every Answer is a Change. The handler may answer on this thread,
// and Free deletes the call, so neither runs under mutex_.

// Holds mutex_ while the state is updated. Then starts the steps that the new state allows, and
// frees the call if this was its last change.
class ABSL_SCOPED_LOCKABLE StreamCall::Change {
 public:
  explicit Change(StreamCall& call) ABSL_EXCLUSIVE_LOCK_FUNCTION(call.mutex_) : call_(call) {
    call_.mutex_.Lock();
  }
  ~Change() ABSL_UNLOCK_FUNCTION() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    call_.Advance();
    const bool free = call_.IsFree();
    call_.mutex_.Unlock();
    if (free) call_.Free();
  }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

 private:
  StreamCall& call_;
};

int64_t OpenStreams::count() const {
  proto::MutexLock lock(&mutex_);
  return static_cast<int64_t>(streams_.size());
}

// mutex_ is held throughout. Free takes it to remove a stream, so no stream is deleted here.
void OpenStreams::Drain() {
  proto::MutexLock lock(&mutex_);
  draining_ = true;
  for (StreamCall* stream : streams_) stream->Drain();
}

void OpenStreams::Add(StreamCall& stream) {
  proto::MutexLock lock(&mutex_);
  streams_.insert(&stream);
  if (draining_) stream.Drain();
}

void OpenStreams::Remove(StreamCall& stream) {
  proto::MutexLock lock(&mutex_);
  streams_.erase(&stream);
}

// gRPC makes its map of headers when they are first asked for. On a stream several threads may ask.
void StreamCall::OnArrived() {
  static_cast<void>(context_.client_metadata());
  began_ = parts_.reads->clock().Now();
  Count();
  method_.open->Add(*this);
  {
    proto::MutexLock lock(&mutex_);
    Advance();
  }
  arming_->Refill();  // the last step may be hours away
}

// Advance may start the next read under the lock, before the handler has seen this message:
// message_ was swapped out. Once the handler has the last message, the call may be gone.
void StreamCall::OnRead(bool ok) {
  grpc::ByteBuffer message;
  {
    const Change change(*this);
    reading_ = false;
    closed_ = closed_ || !ok;
    if (ok) {
      message.Swap(&message_);
      ++unanswered_;
      ++held_;
      held_bytes_ += static_cast<int64_t>(message.Length());
      received_bytes_ += static_cast<int64_t>(message.Length());
    }
    if (arming_->queue().must_look() && !closed_) {
      deferred_ = true;
      arming_->queue().Defer(looked_);
    }
  }
  if (ok) method_.handler(*this, message);
}

void StreamCall::OnLooked(bool) {
  const Change change(*this);
  deferred_ = false;
}

// Any thread. From here the message counts with its reply's bytes if these are more (held_bytes_),
// until OnWritten.
void StreamCall::Answer(grpc::ByteBuffer& reply, int64_t message_bytes, Permit permit) {
  const Change change(*this);
  --unanswered_;
  Reply& kept = replies_.emplace_back();
  kept.bytes.Swap(&reply);
  kept.held_bytes = std::max(message_bytes, static_cast<int64_t>(kept.bytes.Length()));
  kept.permit = std::move(permit);
  held_bytes_ += kept.held_bytes - message_bytes;
  if (!kept.IsAdmitted()) ++unadmitted_;
  connection().OweReply(static_cast<int64_t>(kept.bytes.Length()));
  if (gone_) DropReplies();
}

void StreamCall::Drop(int64_t message_bytes) {
  const Change change(*this);
  --unanswered_;
  --held_;
  held_bytes_ -= message_bytes;
}

bool StreamCall::BeginRequest(uint64_t sequence, std::shared_ptr<std::atomic<bool>>& cancelled) {
  proto::MutexLock lock(&mutex_);
  const auto [entry, is_new] = requests_.try_emplace(sequence, nullptr);
  if (!is_new) return false;
  entry->second = std::make_shared<std::atomic<bool>>(gone_);
  cancelled = entry->second;
  return true;
}

void StreamCall::EndRequest(uint64_t sequence) {
  proto::MutexLock lock(&mutex_);
  requests_.erase(sequence);
}

void StreamCall::CancelRequest(uint64_t sequence) {
  proto::MutexLock lock(&mutex_);
  const auto request = requests_.find(sequence);
  if (request == requests_.end()) return connection().CountUnknownCancel();
  request->second->store(true, std::memory_order_relaxed);
}

void StreamCall::OnWritten(bool ok) {
  const Change change(*this);
  writing_ = false;
  Uncount(replies_.front(), ok);
  replies_.pop_front();
  if (!ok) gone_ = true;
  if (gone_) DropReplies();
}

void StreamCall::OnEnded(bool) {
  const Change change(*this);
  finished_ = true;
}

// gRPC's done notification: the RPC is over, by Finish or because the client has gone. Answers may
// still be missing; IsFree waits for them.
void StreamCall::OnDone() {
  const Change change(*this);
  done_seen_ = true;
  if (!cancelled()->load(std::memory_order_relaxed)) return;
  for (auto& [sequence, flag] : requests_) flag->store(true, std::memory_order_relaxed);
  gone_ = true;
  DropReplies();
}

void StreamCall::Drain() {
  proto::MutexLock lock(&mutex_);
  draining_ = true;
  Advance();
}

// Called with mutex_ held after every change of state. It keeps at most one read and one write
// under way, as gRPC requires.
//   read:   while the client may send more and less than the flow-control limits is held
//   write:  the first reply, if none is being written
//   finish: once, when no more messages come, all are answered, and all answers are written
void StreamCall::Advance() {
  if (finishing_) return;
  const bool may_read = !closed_ && !draining_ && !gone_ && held_ < kRequestsMax &&
                        held_bytes_ < kBytesMax && unadmitted_ < kErrorsMax;
  if (may_read && !reading_ && !deferred_) {
    reading_ = true;
    StartRead(/*is_open_stream=*/true);
  }
  if (!writing_ && !replies_.empty()) WriteFirst();
  if (writing_ || unanswered_ > 0 || !(closed_ || draining_ || gone_)) return;
  finishing_ = true;
  code_ = closed_ ? absl::StatusCode::kOk : absl::StatusCode::kUnavailable;
  stream_.Finish(
      closed_ ? grpc::Status::OK
              : grpc::Status(grpc::StatusCode::UNAVAILABLE, "server: draining, try another one"),
      &ended_);
}

// A buffer hint tells gRPC to keep the message until the next write. It is given only if the next
// reply is ready, and for fewer replies in a row than gather, and fewer bytes than kJoinedBytesMax.
void StreamCall::WriteFirst() {
  const grpc::ByteBuffer& bytes = replies_.front().bytes;
  joined_bytes_ += static_cast<int64_t>(bytes.Length());
  grpc::WriteOptions options;
  // Never hint the first message: gRPC would not send it together with the headers.
  const bool may_wait = std::exchange(has_written_, true) && replies_.size() > 1 &&
                        ++joined_ < limits::kGatheredRequestsMax &&
                        joined_bytes_ < limits::kJoinedBytesMax;
  if (may_wait) {
    options.set_buffer_hint();
  } else {
    joined_ = joined_bytes_ = 0;
  }
  writing_ = true;
  StartWrite(bytes, options);
}

void StreamCall::DropReplies() {
  const size_t kept = writing_ ? 1 : 0;
  for (; replies_.size() > kept; replies_.pop_back()) Uncount(replies_.back(), /*taken=*/false);
}

void StreamCall::Uncount(const Reply& reply, bool taken) {
  --held_;
  held_bytes_ -= reply.held_bytes;
  const auto bytes = static_cast<int64_t>(reply.bytes.Length());
  if (taken) sent_bytes_ += bytes;
  connection().PayReply(bytes, taken);
  if (!reply.IsAdmitted()) --unadmitted_;
}

bool StreamCall::IsFree() const {
  return finished_ && done_seen_ && !reading_ && !writing_ && unanswered_ == 0 && !deferred_;
}

// No event of the call is pending.
void StreamCall::Free() {
  if (method_.counts != nullptr) {
    const absl::Duration duration = parts_.reads->clock().Now() - began_;
    const bool cancelled_by_client = cancelled()->load(std::memory_order_relaxed);
    proto::MutexLock lock(&mutex_);
    method_.counts->End({cancelled_by_client ? absl::StatusCode::kCancelled : code_, duration,
                         received_bytes_, sent_bytes_});
  }
  method_.open->Remove(*this);
  Release();
}

}  // namespace rope::server
