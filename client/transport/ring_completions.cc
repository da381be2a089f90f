#include "client/transport/ring_completions.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>
#include <vector>

#include "client/error.h"
#include "client/transport/waiter.h"

namespace rope::client {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// How long the thread completes answers before it looks at deadlines.
constexpr std::chrono::milliseconds kTurn{1};

// How long the thread sleeps at most before it looks whether the ring is lost; the second after a
// sleep in which no request has come.
constexpr std::chrono::milliseconds kLookAgain{50};
constexpr std::chrono::seconds kLookAgainIdle{1};

}  // namespace

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
      completions.push_back({std::exchange(entry.on_reply, nullptr), ErrorOf(entry, is_lost)});
    }
    return completions;
  }

  static Status ErrorOf(const Entry& entry, bool is_lost) {
    if (entry.cancelled) return CancelledByCaller(/*may_have_executed=*/true);
    if (is_lost) return MakeError(Reason::kConnectionLost, "ring: the connection was lost", true);
    return MakeError(Reason::kDeadline, "ring: no answer in time", true);
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
  std::thread thread;
  {
    const proto::MutexLock lock(&mu_);
    thread.swap(thread_);
  }
  if (thread.get_id() == std::this_thread::get_id()) {
    thread.detach();
  } else if (thread.joinable()) {
    thread.join();
  }
}

std::optional<RingCompletions::Ticket> RingCompletions::Reserve() {
  const std::optional<Ticket> ticket = requests_->Reserve();
  if (ticket.has_value()) StartThread();
  return ticket;
}

void RingCompletions::StartThread() {
  const proto::MutexLock lock(&mu_);
  if (thread_.joinable()) return;
  thread_ = std::thread([requests = requests_] { requests->Run(); });
}

void RingCompletions::Submit(const Ticket& ticket, std::string_view request, microseconds timeout,
                             OnReply on_reply) {
  requests_->Submit(ticket, request, timeout, std::move(on_reply));
}

void RingCompletions::Cancel(const Ticket& ticket) {
  requests_->Cancel(ticket);
}

}  // namespace rope::client
