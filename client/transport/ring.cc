#include "client/transport/ring.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/error.h"
#include "client/transport/waiter.h"
#include "kernels/status_macros.h"
#include "proto/ipc/ring.h"

namespace rope::client {
namespace {

using proto::RingState;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// How long a sleeping thread takes at most to notice that its server is gone.
constexpr microseconds kNoticeMax = milliseconds(50);

// The replies to larger requests take longer than the usual spin time. A thread that polls for them
// only takes a processor from the server.
constexpr int64_t kPolledBytesMax = 4 << 20;

bool IsDone(const proto::RingSlot& slot) {
  return slot.state.load(std::memory_order_acquire) == ValueOf(RingState::kDone);
}

void Write(std::string_view request, microseconds timeout, RingState state, proto::RingSlot& slot) {
  std::memcpy(slot.message.data(), request.data(), request.size());
  slot.message_bytes.store(static_cast<uint32_t>(request.size()), std::memory_order_relaxed);
  slot.timeout_us.store(timeout.count(), std::memory_order_relaxed);
  slot.state.store(ValueOf(state), std::memory_order_relaxed);
}

Result<ReceivedReply> ReplyIn(const proto::RingSlot& slot) {
  const size_t bytes = std::min<size_t>(slot.message_bytes.load(std::memory_order_relaxed),
                                        proto::kRingMessageBytes);
  Result<ReceivedReply> reply = ReceivedReply::ParseSmall({slot.message.data(), bytes});
  if (!reply.ok() || slot.code.load(std::memory_order_relaxed) == 0) return reply;
  const Status error = reply->error();
  if (!error.ok()) return error;
  return MakeError(Reason::kInternal, "reply", "a code without its error", "");
}

}  // namespace

Result<std::unique_ptr<Ring>> Ring::Create(microseconds spin) {
  ROPE_ASSIGN_OR_RETURN(
      std::unique_ptr<SharedMemory> memory,
      SharedMemory::CreateMemfd(sizeof(proto::Ring), SharedMemory::Use::kStaging));
  return std::unique_ptr<Ring>(new Ring(std::move(memory), spin));  // owned by the result
}

Ring::Ring(std::unique_ptr<SharedMemory> memory, microseconds spin)
    : memory_(std::move(memory)), spin_(spin) {
  // Uses low slots first, so that few calls touch few pages.
  for (uint32_t slot = proto::kRingSlots; slot > 0; --slot) free_.push_back(slot - 1);
}

void Ring::Open(proto::FileDescriptor doorbell, proto::FileDescriptor socket) {
  doorbell_ = std::move(doorbell);
  socket_ = std::move(socket);
}

std::optional<Result<ReceivedReply>> Ring::Call(std::string_view request, int64_t tensor_bytes,
                                                microseconds timeout) {
  timeout = BoundedTimeout(timeout);
  const auto deadline = Clock::now() + timeout;
  const std::optional<uint32_t> index = Reserve();
  if (!index.has_value()) return std::nullopt;
  proto::RingSlot& slot = shared().slots[*index];
  Write(request, timeout, RingState::kSubmitted, slot);
  Submit(*index);
  const Outcome outcome = Await(slot, tensor_bytes <= kPolledBytesMax, deadline);
  if (outcome != Outcome::kAnswered) {
    Abandon(*index);
    return outcome == Outcome::kLost
               ? MakeError(Reason::kConnectionLost, "ring: the connection was lost", true)
               : MakeError(Reason::kDeadline, "ring: no answer in time", true);
  }
  return TakeReply(*index);
}

std::optional<uint32_t> Ring::Reserve() {
  if (shared().closed.load() != 0) return std::nullopt;
  const proto::MutexLock lock(&mu_);
  if (free_.empty()) {
    const auto answered = [this](uint32_t slot) { return IsDone(shared().slots[slot]); };
    const auto begin = std::stable_partition(abandoned_.begin(), abandoned_.end(),
                                             [&](uint32_t slot) { return !answered(slot); });
    free_.assign(begin, abandoned_.end());
    abandoned_.erase(begin, abandoned_.end());
  }
  if (free_.empty()) return std::nullopt;
  const uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void Ring::Abandon(uint32_t slot) {
  GiveUp(slot);
  const proto::MutexLock lock(&mu_);
  abandoned_.push_back(slot);
}

void Ring::Submit(uint32_t slot) {
  {
    const proto::MutexLock lock(&mu_);
    const uint32_t submitted = shared().submitted.load(std::memory_order_relaxed);
    shared().queue[submitted % proto::kRingSlots].store(slot, std::memory_order_relaxed);
    shared().submitted.store(submitted + 1);
  }
  // The server says that it sleeps before it looks for the last time: one of us sees the other.
  WakeServer();
}

void Ring::WakeServer() {
  if (shared().asleep.load() == 0 || shared().asleep.exchange(0) == 0) return;
  const uint64_t one = 1;
  // Fails only if the counter would overflow (2^64 - 1).
  static_cast<void>(write(doorbell_.get(), &one, sizeof(one)));
}

Ring::Outcome Ring::Await(proto::RingSlot& slot, bool may_poll, Clock::time_point deadline) const {
  const Waiter waiter;
  const auto end = std::min(Clock::now() + spin_, deadline);
  while (may_poll && waiter.may_poll() && Clock::now() < end) {
    if (IsDone(slot)) return Outcome::kAnswered;
    sched_yield();  // another thread may be the one that has the answer to bring
  }
  return Sleep(slot, deadline);
}

Ring::Outcome Ring::Sleep(proto::RingSlot& slot, Clock::time_point deadline) const {
  const uint32_t awaited = ValueOf(RingState::kAwaited);
  uint32_t expected = ValueOf(RingState::kSubmitted);
  if (!slot.state.compare_exchange_strong(expected, awaited)) return Outcome::kAnswered;
  for (;;) {
    const bool is_lost = IsLost();  // before the last look
    const auto left = std::chrono::ceil<microseconds>(deadline - Clock::now());
    if (IsDone(slot)) return Outcome::kAnswered;
    if (is_lost) return Outcome::kLost;
    if (left <= microseconds(0)) return Outcome::kTimedOut;
    proto::FutexWait(slot.state, awaited, std::min(left, kNoticeMax));
  }
}

void Ring::SubmitQueued(uint32_t slot, std::string_view request, microseconds timeout) {
  Write(request, BoundedTimeout(timeout), RingState::kQueued, shared().slots[slot]);
  Submit(slot);
}

std::optional<uint32_t> Ring::NextCompleted() {
  if (shared().completed.load() == completions_read_) return std::nullopt;
  const auto& next = shared().completions[completions_read_++ % proto::kRingSlots];
  return next.load(std::memory_order_relaxed) % proto::kRingSlots;
}

Result<ReceivedReply> Ring::TakeReply(uint32_t slot) {
  Result<ReceivedReply> reply = ReplyIn(shared().slots[slot]);
  const proto::MutexLock lock(&mu_);
  free_.push_back(slot);
  return reply;
}

// The reader sets `reader_asleep` before its last look, and the server and WakeReader look at it
// after what they have to tell: one of the two sees the other.
void Ring::AwaitCompletion(microseconds timeout) {
  std::atomic<uint32_t>& asleep = shared().reader_asleep;
  asleep.store(1);
  const bool may_sleep =
      shared().completed.load() == completions_read_ && !reader_woken_.exchange(false);
  if (may_sleep) proto::FutexWait(asleep, 1, timeout);
  asleep.store(0);
}

void Ring::WakeReader() {
  reader_woken_.store(true);
  if (shared().reader_asleep.exchange(0) != 0) proto::FutexWakeAll(shared().reader_asleep);
}

bool Ring::IsLost() const {
  if (shared().closed.load() != 0) return true;
  pollfd connection = {socket_.get(), POLLRDHUP, 0};
  return poll(&connection, 1, 0) == 1;
}

}  // namespace rope::client
