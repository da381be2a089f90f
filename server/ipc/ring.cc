#include "server/ipc/ring.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "server/error.h"
#include "server/telemetry/log.h"

namespace rope::server {
namespace {

// Waking a thread costs as much as ten small requests. So the thread that serves rings wakes the
// client's reader after this many completions, or when no request is left.
constexpr int64_t kCompletionsPerWake = 32;

thread_local bool serves_rings = false;

constexpr int64_t kTimeoutMaxUs = int64_t{86'400} * 1'000'000;  // a day

}  // namespace

Connection& RingCall::connection() const {
  return *ring_->connection_;
}

const std::shared_ptr<std::atomic<bool>>& RingCall::cancelled() const {
  return ring_->cancelled_;
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

Ring::Ring(std::shared_ptr<Connection> connection, std::unique_ptr<Region> memory)
    : connection_(std::move(connection)),
      memory_(std::move(memory)),
      shared_(*reinterpret_cast<proto::Ring*>(memory_->mapped())) {
  for (uint32_t i = 0; i < proto::kRingSlots; ++i) {
    calls_[i].ring_ = this;
    calls_[i].index_ = i;
    calls_[i].slot_ = &shared_.slots[i];
  }
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
  if (++completions_since_wake_ == kCompletionsPerWake) WakeForCompletions();
}

void Ring::WakeForCompletions() {
  if (completions_since_wake_ == 0) return;
  completions_since_wake_ = 0;
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

namespace {

absl::Status TooManyFiles() {
  return MakeError(Reason::kLimitExceeded, "ring", "one file more than the server may open", "");
}

}  // namespace

void WakeLoop(const proto::FileDescriptor& doorbell) {
  const uint64_t one = 1;
  if (write(doorbell.get(), &one, sizeof(one)) != sizeof(one)) {
    Log(spdlog::level::err, LogLine("eventfd: cannot be written"));
  }
}

absl::StatusOr<std::unique_ptr<RingLoop>> RingLoop::Create(absl::Duration spin,
                                                           Ring::Handler handler, OnIdle on_idle) {
  proto::FileDescriptor wake(eventfd(0, EFD_CLOEXEC));
  proto::FileDescriptor events(epoll_create1(EPOLL_CLOEXEC));
  if (!wake.ok() || !events.ok()) return TooManyFiles();
  return std::unique_ptr<RingLoop>(new RingLoop(spin, std::move(handler),             // owned by
                                                std::move(on_idle), std::move(wake),  // the result
                                                std::move(events)));
}

RingLoop::RingLoop(absl::Duration spin, Ring::Handler handler, OnIdle on_idle,
                   proto::FileDescriptor wake, proto::FileDescriptor events)
    : spin_(spin),
      handler_(std::move(handler)),
      on_idle_(std::move(on_idle)),
      wake_(std::move(wake)),
      events_(std::move(events)) {
  Watch(wake_.get());
  thread_ = std::thread([this] { Run(); });
}

absl::StatusOr<proto::FileDescriptor> RingLoop::Open(std::shared_ptr<Connection> connection,
                                                     proto::FileDescriptor memfd, uint64_t bytes) {
  ROPE_ASSIGN_OR_RETURN(auto memory, Ring::MapMemory(std::move(memfd), bytes));
  const uint64_t id = connection->id();
  ServedRing served;
  served.ring = std::make_shared<Ring>(std::move(connection), std::move(memory));
  served.doorbell = proto::FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  proto::FileDescriptor for_client(fcntl(served.doorbell.get(), F_DUPFD_CLOEXEC, 0));
  if (!for_client.ok() || !Watch(served.doorbell.get())) return TooManyFiles();
  proto::MutexLock lock(&mutex_);
  if (stopped_.load()) return MakeError(Reason::kDraining, "ring", "one while the server ends", "");
  served_[id] = std::move(served);
  version_.fetch_add(1);
  WakeLoop(wake_);
  return for_client;
}

void RingLoop::Close(uint64_t id) {
  proto::MutexLock lock(&mutex_);
  const auto found = served_.find(id);
  if (found == served_.end()) return;
  found->second.ring->Close();
  // The client has the doorbell too, so that closing ours would not take it out.
  epoll_ctl(events_.get(), EPOLL_CTL_DEL, found->second.doorbell.get(), nullptr);
  served_.erase(found);
  version_.fetch_add(1);
  WakeLoop(wake_);
}

void RingLoop::Stop() {
  {
    proto::MutexLock lock(&mutex_);
    stopped_.store(true);
    version_.fetch_add(1);
    WakeLoop(wake_);
  }
  if (thread_.joinable()) thread_.join();
}

int64_t RingLoop::count() const {
  proto::MutexLock lock(&mutex_);
  return static_cast<int64_t>(served_.size());
}

bool RingLoop::Serves(uint64_t id) const {
  proto::MutexLock lock(&mutex_);
  return served_.contains(id);
}

// Doorbells are never read: each time that one is rung is a separate event (EPOLLET), so that no
// thread waits for what a client does with its end.
bool RingLoop::Watch(int fd) const {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  return epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void RingLoop::Run() {
  Rings rings;
  int64_t version = -1;
  // End of the spin time. As PollLoop: the clock is read only after a poll that finds no work.
  std::optional<std::chrono::steady_clock::time_point> end;
  while (true) {
    const bool stopped = stopped_.load();  // before the last rings are taken
    if (version_.load() != version) Refresh(rings, version);
    if (stopped) break;
    if (ServeAll(rings)) {
      end.reset();
      continue;
    }
    // As PollLoop: on_idle_ runs until it has no work, and then not again during the spin time.
    if (!end.has_value() && on_idle_()) continue;
    const auto now = std::chrono::steady_clock::now();
    if (!end.has_value()) end = now + absl::ToChronoNanoseconds(spin_);
    if (!rings.empty() && now < *end) {
      sched_yield();  // others may need this core
      continue;
    }
    Sleep(rings, version);
    end.reset();
  }
  // What was submitted before; not until nothing is left, since a client may go on and on.
  for (uint32_t i = 0; i < proto::kRingSlots; i += Ring::kServedAtOnce) ServeAll(rings);
  while (on_idle_()) continue;
  for (const auto& [id, ring] : rings) ring->Close();
}

void RingLoop::Refresh(Rings& rings, int64_t& version) const {
  proto::MutexLock lock(&mutex_);
  version = version_.load();
  rings.clear();
  for (const auto& [id, served] : served_) rings.emplace_back(id, served.ring);
}

bool RingLoop::ServeAll(const Rings& rings) {
  bool any = false;
  for (const auto& [id, ring] : rings) {
    switch (ring->Serve(handler_)) {
      case Ring::ServeResult::kNothing:
        break;
      case Ring::ServeResult::kSome:
        any = true;
        break;
      case Ring::ServeResult::kBroken:
        LogLimited(LogKind::kRing, spdlog::level::info,
                   LogLine("ring: got a slot, a count or a length against its rules; it is "
                           "closed"));
        Close(id);
    }
  }
  return any;
}

void RingLoop::Sleep(const Rings& rings, int64_t version) const {
  for (const auto& [id, ring] : rings) ring->SetAsleep(true);
  // A client that submits after this rings its doorbell. HasWork sees earlier submissions.
  const auto has_work = [](const auto& of) { return of.second->HasWork(); };
  if (version_.load() == version && std::ranges::none_of(rings, has_work)) {
    epoll_event event{};
    epoll_wait(events_.get(), &event, 1, -1);
  }
  for (const auto& [id, ring] : rings) ring->SetAsleep(false);
}

}  // namespace rope::server
