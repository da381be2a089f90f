#include "server/engine/side_thread.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/limits.h"
#include "server/error.h"

namespace rope::server {

SideThread::SideThread(const Clock& clock) : clock_(clock), thread_([this] { Loop(); }) {}

SideThread::~SideThread() {
  Drain();
}

void SideThread::StartRequest(uint64_t session, std::unique_ptr<Work> work) {
  Start({std::move(work), session, /*is_call=*/false, nullptr});
}

void SideThread::StartCall(uint64_t session, std::unique_ptr<Work> work, Cancelled cancelled) {
  Start({std::move(work), session, /*is_call=*/true, std::move(cancelled)});
}

void SideThread::Start(Entry entry) {
  absl::Status refused;
  {
    proto::MutexLock lock(&mutex_);
    refused = drain_.draining ? Draining() : CheckRoom(entry);
    if (refused.ok()) {
      const uint64_t session = entry.session;
      queue_.Push(session, std::move(entry));
      work_.Signal();
      return;
    }
  }
  entry.work->End(refused);
}

absl::Status SideThread::CheckRoom(const Entry& entry) const {
  if (!entry.is_call) return absl::OkStatus();
  const int64_t calls = queue_.CountIf([](const Entry& waits) { return waits.is_call; });
  if (calls >= limits::kControlCallsMax) {
    return RetryLater(Reason::kQueueFull, "queue",
                      absl::StrCat("call number ", calls + 1, " that takes long"),
                      absl::StrCat("at most ", limits::kControlCallsMax, " at a time"));
  }
  const int64_t of_session = queue_.CountIf(
      [&entry](const Entry& waits) { return waits.is_call && waits.session == entry.session; });
  if (of_session < limits::kSessionsControlCallsMax) return absl::OkStatus();
  return RetryLater(
      Reason::kQueueFull, "queue",
      absl::StrCat("call number ", of_session + 1, " of this connection that takes long"),
      absl::StrCat("at most ", limits::kSessionsControlCallsMax, " at a time"));
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
  return WithinMemory([&] { return entry.work->Step(); });
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
