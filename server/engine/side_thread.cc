#include "server/engine/side_thread.h"

#include <utility>

#include "server/error.h"

namespace rope::server {

SideThread::SideThread(const Clock& clock) : clock_(clock), thread_([this] { Loop(); }) {}

SideThread::~SideThread() {
  Drain();
}

void SideThread::StartRequest(uint64_t session, std::unique_ptr<Work> work) {
  Start({std::move(work), session, nullptr});
}

void SideThread::StartCall(uint64_t session, const std::shared_ptr<Account>& account,
                           std::unique_ptr<Work> work, Cancelled cancelled) {
  auto place = TakePlace(account, Resource::kLongCalls);
  if (!place.ok()) return work->End(place.status());
  Start({std::move(work), session, std::move(cancelled), *std::move(place)});
}

void SideThread::Start(Entry entry) {
  {
    proto::MutexLock lock(&mutex_);
    if (!drain_.draining) {
      const uint64_t session = entry.session;
      queue_.Push(session, std::move(entry));
      work_.Signal();
      return;
    }
  }
  entry.work->End(Draining());
}

void SideThread::Loop() {
  while (true) {
    Entry entry;
    bool abandoned = false;
    {
      proto::MutexLock lock(&mutex_);
      while (queue_.empty() && !drain_.draining) work_.Wait(&mutex_);
      if (queue_.empty()) return drain_.End();
      entry = queue_.Pop();
      abandoned = drain_.abandoned;
    }
    const absl::StatusOr<bool> finished = abandoned ? Draining() : StepOf(entry);
    if (!finished.ok() || *finished) {
      entry.work->End(finished.status());
      continue;
    }
    proto::MutexLock lock(&mutex_);
    const uint64_t session = entry.session;
    queue_.Push(session, std::move(entry));
  }
}

absl::StatusOr<bool> SideThread::StepOf(const Entry& entry) {
  if (entry.cancelled != nullptr && entry.cancelled->load(std::memory_order_relaxed)) {
    return MakeError({.reason = Reason::kCancelled}, "request: cancelled while it was computed");
  }
  return WithoutExceptions([&] { return entry.work->Step(); });
}

void SideThread::Drain(absl::Duration timeout) {
  if (!thread_.joinable()) return;
  const absl::Time end = clock_.Now() + timeout;
  {
    proto::MutexLock lock(&mutex_);
    drain_.draining = true;
    work_.Signal();
    drain_.Await(&mutex_, clock_, end);
  }
  thread_.join();
}

void SideThread::StopWaiting() {
  proto::MutexLock lock(&mutex_);
  drain_.Abandon();
}

}  // namespace rope::server
