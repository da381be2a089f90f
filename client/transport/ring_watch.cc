#include "client/transport/ring_watch.h"

#include <utility>

namespace rope::client {
namespace {

// How long the thread takes at most to notice that its ring is lost, or nobody's any more.
constexpr std::chrono::seconds kLookAgain{1};

}  // namespace

std::shared_ptr<RingWatch> RingWatch::Start(std::shared_ptr<Ring> ring,
                                            std::shared_ptr<Strand> strand) {
  auto watch = std::make_shared<RingWatch>(std::move(ring));
  watch->thread_ = std::thread([watch, strand = std::move(strand)] { watch->Run(*strand); });
  return watch;
}

RingWatch::RingWatch(std::shared_ptr<Ring> ring) : ring_(std::move(ring)) {}

bool RingWatch::Submit(std::string_view request, std::chrono::microseconds timeout,
                       const std::shared_ptr<Waiting>& waiting, uint64_t number) {
  std::shared_ptr<Ring> ring;
  std::optional<uint32_t> slot;
  {
    const proto::MutexLock lock(&mu_);
    ring = ring_;
    if (ring == nullptr) return false;
    slot = ring->TakeSlot();
    if (!slot.has_value()) return false;
    expected_[*slot] = {waiting, number};
  }
  ring->SubmitWatched(*slot, request, timeout);
  return true;
}

void RingWatch::GiveUp(const Waiting& waiting) {
  const proto::MutexLock lock(&mu_);
  for (uint32_t slot = 0; slot < proto::kRingSlots; ++slot) {
    // Expected until its answer is taken: the slot is nobody else's.
    const bool is_its = expected_[slot].waiting.lock().get() == &waiting;
    if (is_its && ring_ != nullptr) ring_->GiveUp(slot);
  }
}

void RingWatch::Stop() {
  stopped_.store(true);
  const proto::MutexLock lock(&mu_);
  if (ring_ != nullptr) ring_->StopWatching();
}

bool RingWatch::JoinIfEnded() {
  {
    const proto::MutexLock lock(&mu_);
    if (ring_ != nullptr) return false;
  }
  Join();
  return true;
}

bool RingWatch::Watches(const Ring& ring) {
  const proto::MutexLock lock(&mu_);
  return ring_.get() == &ring;
}

void RingWatch::Run(Strand& strand) {
  strand.EnterThread();
  while (!stopped_.load()) {
    if (HandOn(strand)) continue;
    const bool is_lost = ring_->IsLost();  // before the last look
    if (HandOn(strand)) continue;
    if (is_lost || ring_.use_count() == 1) break;
    ring_->AwaitAnswered(kLookAgain);
  }
  if (!stopped_.load()) EndAll(strand);
  std::shared_ptr<Ring> ring;  // goes after the lock
  const proto::MutexLock lock(&mu_);
  ring.swap(ring_);
}

bool RingWatch::HandOn(Strand& strand) {
  bool any = false;
  while (const std::optional<uint32_t> slot = ring_->NextAnswered()) {
    any = true;
    const Expected expected = TakeExpected(*slot);
    Result<ReceivedReply> reply = ring_->TakeAnswer(*slot);
    const proto::MutexLock turn(&strand.turn());
    const std::shared_ptr<Waiting> waiting = expected.waiting.lock();
    if (waiting != nullptr) waiting->OnAnswer(expected.number, std::move(reply));
  }
  return any;
}

RingWatch::Expected RingWatch::TakeExpected(uint32_t slot) {
  const proto::MutexLock lock(&mu_);
  return std::exchange(expected_[slot], {});
}

void RingWatch::EndAll(Strand& strand) {
  for (uint32_t slot = 0; slot < proto::kRingSlots; ++slot) {
    const Expected expected = TakeExpected(slot);
    const proto::MutexLock turn(&strand.turn());
    if (const auto waiting = expected.waiting.lock()) waiting->OnLost();
  }
}

}  // namespace rope::client
