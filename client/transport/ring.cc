#include "client/transport/ring.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "client/error.h"
#include "kernels/status_macros.h"

namespace rope::client {
namespace {

using proto::RingState;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// How long the thread of RingCompletions completes answers before it looks at deadlines.
constexpr milliseconds kTurn{1};

// How long the thread sleeps at most before it looks whether the ring is lost; the second after a
// sleep in which no request has come.
constexpr milliseconds kLookAgain{50};
constexpr std::chrono::seconds kLookAgainIdle{1};

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

// What ends a request that the server has not answered.
Status Unanswered(bool is_lost) {
  return is_lost ? MakeError(Reason::kConnectionLost, "ring: the connection was lost", true)
                 : MakeError(Reason::kDeadline, "ring: no answer in time", true);
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
    GiveUp(*index);
    const proto::MutexLock lock(&mu_);
    abandoned_.push_back(*index);  // free once the server has answered it
    return Unanswered(outcome == Outcome::kLost);
  }
  return TakeReply(*index);
}

std::optional<uint32_t> Ring::Reserve() {
  if (shared().closed.load() != 0) return std::nullopt;
  const proto::MutexLock lock(&mu_);
  if (free_.empty()) {
    const auto is_open = [this](uint32_t slot) { return !IsDone(shared().slots[slot]); };
    const auto begin = std::stable_partition(abandoned_.begin(), abandoned_.end(), is_open);
    free_.assign(begin, abandoned_.end());
    abandoned_.erase(begin, abandoned_.end());
  }
  if (free_.empty()) return std::nullopt;
  const uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void Ring::Submit(uint32_t slot) {
  {
    const proto::MutexLock lock(&mu_);
    const uint32_t submitted = shared().submitted.load(std::memory_order_relaxed);
    shared().queue[submitted % proto::kRingSlots].store(slot, std::memory_order_relaxed);
    shared().submitted.store(submitted + 1);
  }
  // The server says that it sleeps before it looks for the last time: one of us sees the other.
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

class RingCompletions::Requests {
 public:
  Requests(std::shared_ptr<Ring> ring, std::shared_ptr<const CallbackOwner> owner)
      : ring_(std::move(ring)), owner_(std::move(owner)) {}

  std::optional<Ticket> Reserve() {
    const proto::MutexLock lock(&mu_);
    if (taken_ >= kRequestsMax) return std::nullopt;
    const std::optional<uint32_t> slot = ring_->Reserve();
    if (!slot.has_value()) return std::nullopt;
    ++taken_;
    entries_[*slot] = {.number = ++last_number_};
    return Ticket{*slot, last_number_};
  }

  void Submit(const Ticket& ticket, std::string_view request, microseconds timeout,
              OnReply on_reply) {
    const microseconds bounded = BoundedTimeout(timeout);
    bool wakes_earlier = false;
    {
      const proto::MutexLock lock(&mu_);
      Entry& entry = entries_[ticket.slot];
      const microseconds left = entry.cancelled ? microseconds(0) : bounded;
      // Under the lock: once the entry can complete, `request` may go.
      ring_->SubmitQueued(ticket.slot, request, left);
      const auto now = Clock::now();
      entry.submitted = true;
      entry.on_reply = std::move(on_reply);
      entry.deadline = now + left;
      wakes_earlier = std::min(entry.deadline, now + kLookAgain) < wakes_at_;
    }
    if (wakes_earlier) ring_->WakeReader();
  }

  void Cancel(const Ticket& ticket) {
    {
      const proto::MutexLock lock(&mu_);
      Entry& entry = entries_[ticket.slot];
      if (entry.number != ticket.number) return;
      entry.cancelled = true;
      entry.deadline = Clock::now();
      ring_->GiveUp(ticket.slot);
    }
    ring_->WakeReader();
  }

  void Stop() {
    stopped_.store(true);
    ring_->WakeReader();
  }

  void Run() {
    EnterCallbackThread(*owner_);
    while (!stopped_.load()) {
      if (CompleteAnswered() && Clock::now() < turn_ends_) continue;
      turn_ends_ = Clock::now() + kTurn;
      const bool is_lost = ring_->IsLost();  // before the last look
      const bool any = CompleteAnswered();
      if (CompleteUnanswered(is_lost && !any) || any) continue;
      ring_->AwaitCompletion(TimeToSleep());
    }
  }

 private:
  struct Entry {
    uint64_t number = 0;
    bool submitted = false;  // until the server has answered
    bool cancelled = false;
    OnReply on_reply = nullptr;  // null: the request has completed
    Clock::time_point deadline = {};
  };
  struct Completion {
    OnReply on_reply;
    Result<ReceivedReply> reply;
  };

  // Completes what the server has answered, until the turn ends; false: nothing.
  bool CompleteAnswered() {
    bool any = false;
    while (const std::optional<uint32_t> slot = ring_->NextCompleted()) {
      any = true;
      std::optional<Completion> completion = TakeAnswered(*slot);
      if (completion.has_value()) completion->on_reply(std::move(completion->reply));
      if (Clock::now() >= turn_ends_) break;
    }
    return any;
  }

  // nullopt: the request was given up, or the server completed a slot that it was not given.
  std::optional<Completion> TakeAnswered(uint32_t slot) {
    const proto::MutexLock lock(&mu_);
    Entry& entry = entries_[slot];
    if (!entry.submitted) return std::nullopt;
    --taken_;
    Result<ReceivedReply> reply = ring_->TakeReply(slot);
    OnReply on_reply = std::exchange(entry, {}).on_reply;
    if (on_reply == nullptr) return std::nullopt;
    return Completion{std::move(on_reply), std::move(reply)};
  }

  // Completes requests whose time is over, or all if the ring is lost; false: none.
  bool CompleteUnanswered(bool is_lost) {
    std::vector<Completion> completions = TakeUnanswered(is_lost);
    for (Completion& completion : completions) completion.on_reply(std::move(completion.reply));
    return !completions.empty();
  }

  std::vector<Completion> TakeUnanswered(bool is_lost) {
    std::vector<Completion> completions;
    const auto now = Clock::now();
    const proto::MutexLock lock(&mu_);
    for (uint32_t slot = 0; slot < entries_.size(); ++slot) {
      Entry& entry = entries_[slot];
      if (entry.on_reply == nullptr || (!is_lost && entry.deadline > now)) continue;
      ring_->GiveUp(slot);
      completions.push_back(
          {std::exchange(entry.on_reply, nullptr),
           entry.cancelled ? CancelledByCaller(/*may_have_executed=*/true) : Unanswered(is_lost)});
    }
    return completions;
  }

  // Until the first deadline, or the next look at the connection. A Submit with an earlier deadline
  // wakes the thread. Shortly after a request the sleep is as short as with one, so that the next
  // request does not have to wake the thread.
  microseconds TimeToSleep() {
    const auto now = Clock::now();
    const proto::MutexLock lock(&mu_);
    const bool is_idle = std::exchange(number_at_sleep_, last_number_) == last_number_;
    wakes_at_ = now + (is_idle ? Clock::duration(kLookAgainIdle) : Clock::duration(kLookAgain));
    for (const Entry& entry : entries_) {
      if (entry.on_reply == nullptr) continue;
      wakes_at_ = std::min({wakes_at_, entry.deadline, now + kLookAgain});
    }
    return std::max(std::chrono::ceil<microseconds>(wakes_at_ - now), microseconds(1));
  }

  const std::shared_ptr<Ring> ring_;
  const std::shared_ptr<const CallbackOwner> owner_;
  std::atomic<bool> stopped_ = false;
  Clock::time_point turn_ends_;  // used by the thread only

  proto::Mutex mu_;                                                    // before the ring's
  std::array<Entry, proto::kRingSlots> entries_ ABSL_GUARDED_BY(mu_);  // by slot
  int64_t taken_ ABSL_GUARDED_BY(mu_) = 0;  // reserved or submitted, and not answered
  uint64_t last_number_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t number_at_sleep_ ABSL_GUARDED_BY(mu_) = 0;  // last_number_ when the thread slept last
  Clock::time_point wakes_at_ ABSL_GUARDED_BY(mu_);
};

RingCompletions::RingCompletions(std::shared_ptr<Ring> ring,
                                 std::shared_ptr<const CallbackOwner> owner)
    : requests_(std::make_shared<Requests>(std::move(ring), std::move(owner))) {}

RingCompletions::~RingCompletions() {
  requests_->Stop();
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();
  } else if (thread_.joinable()) {
    thread_.join();
  }
}

std::optional<RingCompletions::Ticket> RingCompletions::Reserve() {
  const std::optional<Ticket> ticket = requests_->Reserve();
  if (!ticket.has_value()) return ticket;
  const proto::MutexLock lock(&mu_);
  if (!thread_.joinable()) thread_ = std::thread([requests = requests_] { requests->Run(); });
  return ticket;
}

void RingCompletions::Submit(const Ticket& ticket, std::string_view request, microseconds timeout,
                             OnReply on_reply) {
  requests_->Submit(ticket, request, timeout, std::move(on_reply));
}

void RingCompletions::Cancel(const Ticket& ticket) {
  requests_->Cancel(ticket);
}

}  // namespace rope::client
