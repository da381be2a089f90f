#include "server/ipc/ring.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "proto/ipc/ring.h"
#include "server/error.h"

namespace rope::server {
namespace {

// Waking a thread costs as much as ten small requests. So the thread that serves rings wakes the
// client's reader after this many completions, or when no request is left.
constexpr int64_t kCompletionsPerWake = 32;

thread_local bool serves_rings = false;

constexpr int64_t kTimeoutMaxUs = int64_t{86'400} * 1'000'000;  // a day

}  // namespace

uint64_t RingCall::session() const {
  return ring_->session_;
}

const std::shared_ptr<std::atomic<bool>>& RingCall::cancelled() const {
  return ring_->cancelled_;
}

std::string RingCall::CopyMessage() const {
  return {slot_->message.data(), message_bytes_};
}

void RingCall::Answer(absl::StatusCode code, std::string_view reply) {
  const std::shared_ptr<Ring> held = std::move(held_);
  ROPE_CHECK(reply.size() <= slot_->message.size());
  std::copy(reply.begin(), reply.end(), slot_->message.begin());
  slot_->message_bytes.store(static_cast<uint32_t>(reply.size()), std::memory_order_relaxed);
  slot_->code.store(static_cast<uint32_t>(code), std::memory_order_relaxed);
  std::atomic<uint32_t>& state = slot_->state;
  under_way_.store(false, std::memory_order_release);  // before the client may use the slot again
  const uint32_t before = state.exchange(ValueOf(proto::RingState::kDone));
  if (before == ValueOf(proto::RingState::kAwaited)) proto::FutexWakeAll(state);
  if (before == ValueOf(proto::RingState::kQueued)) held->Complete(index_);
}

absl::StatusOr<std::unique_ptr<Region>> Ring::MapMemory(proto::FileDescriptor memfd,
                                                        uint64_t bytes) {
  if (bytes != sizeof(proto::Ring)) {
    return InvalidField("hello.ring_bytes", absl::StrCat(bytes),
                        absl::StrCat("0 or ", sizeof(proto::Ring)));
  }
  return Region::MapMemfd(std::move(memfd), bytes);
}

Ring::Ring(uint64_t session, std::unique_ptr<Region> memory)
    : session_(session),
      memory_(std::move(memory)),
      shared_(*reinterpret_cast<proto::Ring*>(memory_->mapped())) {
  for (uint32_t i = 0; i < proto::kRingSlots; ++i) {
    calls_[i].ring_ = this;
    calls_[i].index_ = i;
    calls_[i].slot_ = &shared_.slots[i];
  }
}

bool Ring::HasWork() const {
  return shared_.submitted.load() != taken_;
}

void Ring::SetAsleep(bool asleep) {
  shared_.asleep.store(asleep ? 1 : 0);
}

Ring::ServeResult Ring::Serve(const Handler& handler) {
  const uint32_t submitted = shared_.submitted.load(std::memory_order_acquire);
  if (submitted == taken_) {
    WakeForCompletions();
    return ServeResult::kNothing;
  }
  if (submitted - taken_ > proto::kRingSlots) return ServeResult::kBroken;
  serves_rings = true;
  ServeResult served = ServeResult::kSome;
  for (uint32_t i = 0; i < kServedAtOnce && taken_ != submitted && served == ServeResult::kSome;
       ++i) {
    const auto& next = shared_.queue[taken_++ % proto::kRingSlots];
    const uint32_t index = next.load(std::memory_order_relaxed);
    if (!Take(index, handler)) served = ServeResult::kBroken;
  }
  return served;
}

void Ring::Complete(uint32_t index) {
  {
    const proto::MutexLock lock(&completions_mutex_);
    const uint32_t completed = shared_.completed.load(std::memory_order_relaxed);
    shared_.completions[completed % proto::kRingSlots].store(index, std::memory_order_relaxed);
    shared_.completed.store(completed + 1);
  }
  if (!serves_rings) return WakeReader();
  if (++untold_ == kCompletionsPerWake) WakeForCompletions();
}

void Ring::WakeForCompletions() {
  if (untold_ == 0) return;
  untold_ = 0;
  WakeReader();
}

void Ring::WakeReader() {
  std::atomic<uint32_t>& asleep = shared_.reader_asleep;
  // The client sets `reader_asleep` before it looks for the last time: one of us sees the other.
  if (asleep.load() != 0 && asleep.exchange(0) != 0) proto::FutexWakeAll(asleep);
}

bool Ring::Take(uint32_t index, const Handler& handler) {
  if (index >= proto::kRingSlots) return false;
  RingCall& call = calls_[index];
  if (call.under_way_.load(std::memory_order_acquire)) return false;
  const proto::RingSlot& slot = *call.slot_;
  // Each is read once: the client may write them at any time.
  const uint32_t bytes = slot.message_bytes.load(std::memory_order_relaxed);
  if (bytes > slot.message.size()) return false;
  const int64_t timeout_us = slot.timeout_us.load(std::memory_order_relaxed);
  call.under_way_.store(true, std::memory_order_relaxed);
  call.held_ = shared_from_this();
  call.message_bytes_ = bytes;
  call.time_left_ = absl::Microseconds(std::clamp<int64_t>(timeout_us, 0, kTimeoutMaxUs));
  handler(call);
  return true;
}

void Ring::Close() {
  cancelled_->store(true, std::memory_order_relaxed);
  shared_.closed.store(1);
  for (proto::RingSlot& slot : shared_.slots) {
    if (slot.state.load() == ValueOf(proto::RingState::kAwaited)) proto::FutexWakeAll(slot.state);
  }
  WakeReader();
}

}  // namespace rope::server
