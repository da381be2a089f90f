#include "server/ipc/ring_loop.h"

#include <fcntl.h>
#include <sched.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "server/error.h"
#include "server/telemetry/log.h"

namespace rope::server {
namespace {

absl::Status TooManyFiles() {
  return MakeError(Reason::kLimitExceeded, "ring", "one file more than the server may open", "");
}

}  // namespace

absl::StatusOr<std::unique_ptr<RingLoop>> RingLoop::Create(const Clock& clock, absl::Duration spin,
                                                           Ring::Handler handler, OnIdle on_idle) {
  proto::FileDescriptor wake(eventfd(0, EFD_CLOEXEC));
  proto::FileDescriptor events(epoll_create1(EPOLL_CLOEXEC));
  if (!wake.ok() || !events.ok()) return TooManyFiles();
  return std::unique_ptr<RingLoop>(new RingLoop(clock, spin, std::move(handler),      // owned by
                                                std::move(on_idle), std::move(wake),  // the result
                                                std::move(events)));
}

RingLoop::RingLoop(const Clock& clock, absl::Duration spin, Ring::Handler handler, OnIdle on_idle,
                   proto::FileDescriptor wake, proto::FileDescriptor events)
    : clock_(clock),
      spin_(spin),
      handler_(std::move(handler)),
      on_idle_(std::move(on_idle)),
      wake_(std::move(wake)),
      events_(std::move(events)) {
  Watch(wake_.get());
  thread_ = std::thread([this] { Run(); });
}

RingLoop::~RingLoop() {
  Stop();
}

absl::StatusOr<proto::FileDescriptor> RingLoop::Open(uint64_t token, uint64_t session,
                                                     std::unique_ptr<Region> memory) {
  ServedRing served;
  served.ring = std::make_shared<Ring>(session, std::move(memory));
  served.doorbell = proto::FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  proto::FileDescriptor for_client(fcntl(served.doorbell.get(), F_DUPFD_CLOEXEC, 0));
  if (!for_client.ok() || !Watch(served.doorbell.get())) return TooManyFiles();
  proto::MutexLock lock(&mutex_);
  if (stopped_.load()) return MakeError(Reason::kDraining, "ring", "one while the server ends", "");
  served_[token] = std::move(served);
  version_.fetch_add(1);
  Wake();
  return for_client;
}

void RingLoop::Close(uint64_t token) {
  proto::MutexLock lock(&mutex_);
  const auto found = served_.find(token);
  if (found == served_.end()) return;
  found->second.ring->Close();
  // The client has the doorbell too, so that closing ours would not take it out.
  epoll_ctl(events_.get(), EPOLL_CTL_DEL, found->second.doorbell.get(), nullptr);
  served_.erase(found);
  version_.fetch_add(1);
  Wake();
}

void RingLoop::Stop() {
  {
    proto::MutexLock lock(&mutex_);
    stopped_.store(true);
    version_.fetch_add(1);
    Wake();
  }
  if (thread_.joinable()) thread_.join();
}

int64_t RingLoop::count() const {
  proto::MutexLock lock(&mutex_);
  return static_cast<int64_t>(served_.size());
}

// Doorbells are never read: each time that one is rung is a separate event (EPOLLET), so that no
// thread waits for what a client does with its end.
bool RingLoop::Watch(int fd) const {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLET;
  return epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void RingLoop::Wake() const {
  const uint64_t one = 1;
  if (write(wake_.get(), &one, sizeof(one)) != sizeof(one)) {
    spdlog::error("eventfd: cannot be written");
  }
}

void RingLoop::Run() {
  Rings rings;
  int64_t version = -1;
  // As PollLoop: reads the clock only after a poll that finds no work.
  absl::Time idle_since = absl::InfiniteFuture();
  while (true) {
    const bool stopped = stopped_.load();  // before the last rings are taken
    if (version_.load() != version) Refresh(rings, version);
    if (stopped) break;
    if (ServeAll(rings)) {
      idle_since = absl::InfiniteFuture();
      continue;
    }
    // As PollLoop: on_idle_ runs until it has no work, and then not again during the spin time.
    if (idle_since == absl::InfiniteFuture() && on_idle_()) continue;
    const absl::Time now = clock_.Now();
    idle_since = std::min(idle_since, now);
    if (!rings.empty() && now - idle_since < spin_) {
      sched_yield();  // others may need this core
      continue;
    }
    Sleep(rings, version);
    idle_since = absl::InfiniteFuture();
  }
  // What was submitted before; not until nothing is left, since a client may go on and on.
  for (uint32_t i = 0; i < proto::kRingSlots; i += Ring::kServedAtOnce) ServeAll(rings);
  while (on_idle_()) continue;
  for (const auto& [token, ring] : rings) ring->Close();
}

void RingLoop::Refresh(Rings& rings, int64_t& version) const {
  proto::MutexLock lock(&mutex_);
  version = version_.load();
  rings.clear();
  for (const auto& [token, served] : served_) rings.emplace_back(token, served.ring);
}

bool RingLoop::ServeAll(const Rings& rings) {
  bool any = false;
  for (const auto& [token, ring] : rings) {
    switch (ring->Serve(handler_)) {
      case Ring::ServeResult::kNothing:
        break;
      case Ring::ServeResult::kSome:
        any = true;
        break;
      case Ring::ServeResult::kBroken:
        LogLimited(LogKind::kRing, spdlog::level::info,
                   "ring: got a slot, a count or a length against its rules; it is closed");
        Close(token);
    }
  }
  return any;
}

void RingLoop::Sleep(const Rings& rings, int64_t version) const {
  for (const auto& [token, ring] : rings) ring->SetAsleep(true);
  // A client that submits after this rings its doorbell. HasWork sees earlier submissions.
  const auto has_work = [](const auto& of) { return of.second->HasWork(); };
  if (version_.load() == version && std::ranges::none_of(rings, has_work)) {
    epoll_event event{};
    epoll_wait(events_.get(), &event, 1, -1);
  }
  for (const auto& [token, ring] : rings) ring->SetAsleep(false);
}

}  // namespace rope::server
