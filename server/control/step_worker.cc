#include "server/control/step_worker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/error.h"
#include "server/limits.h"

namespace rope::server {

StepWorker::StepWorker() : thread_([this] { Loop(); }) {}

StepWorker::~StepWorker() {
  Drain();
}

absl::Status StepWorker::Start(std::unique_ptr<Job>& job, uint64_t session, Cancelled cancelled) {
  proto::MutexLock lock(&mutex_);
  if (draining_) return Draining();
  ROPE_RETURN_IF_ERROR(CheckRoom(session));
  waiting_.push_back({std::move(job), session, std::move(cancelled)});
  work_.Signal();
  return absl::OkStatus();
}

absl::Status StepWorker::CheckRoom(uint64_t session) const {
  if (static_cast<int64_t>(waiting_.size()) >= limits::kControlJobsMax) {
    return RetryLater(Reason::kQueueFull, "queue",
                      absl::StrCat("call number ", waiting_.size() + 1, " that takes long"),
                      absl::StrCat("at most ", limits::kControlJobsMax, " at a time"));
  }
  const int64_t of_session = std::ranges::count(waiting_, session, &Entry::session) +
                             (session_in_step_ == session ? 1 : 0);
  if (of_session < limits::kSessionsControlJobsMax) return absl::OkStatus();
  return RetryLater(
      Reason::kQueueFull, "queue",
      absl::StrCat("call number ", of_session + 1, " of this connection that takes long"),
      absl::StrCat("at most ", limits::kSessionsControlJobsMax, " at a time"));
}

// A job that is not finished goes to the end of the queue, which may then have one job more than
// Start allows.
void StepWorker::Loop() {
  while (true) {
    Entry entry;
    {
      proto::MutexLock lock(&mutex_);
      while (waiting_.empty() && !draining_) work_.Wait(&mutex_);
      if (waiting_.empty()) return;
      entry = std::move(waiting_.front());
      waiting_.pop_front();
      session_in_step_ = entry.session;
    }
    const absl::StatusOr<bool> finished = StepOf(entry);
    const bool goes_on = finished.ok() && !*finished;
    if (!goes_on) entry.job->Done(finished.status());
    proto::MutexLock lock(&mutex_);
    session_in_step_.reset();
    if (goes_on) waiting_.push_back(std::move(entry));
  }
}

absl::StatusOr<bool> StepWorker::StepOf(const Entry& entry) {
  if (draining_) return Draining();
  if (entry.cancelled != nullptr && entry.cancelled->load(std::memory_order_relaxed)) {
    return MakeError({.reason = Reason::kCancelled}, "request: cancelled while it was computed");
  }
  return WithinMemory([&] { return entry.job->Step(); });
}

void StepWorker::RunHere(Job& job) {
  absl::StatusOr<bool> finished = false;
  while (finished.ok() && !*finished) finished = WithinMemory([&] { return job.Step(); });
  job.Done(finished.status());
}

void StepWorker::Drain() {
  {
    proto::MutexLock lock(&mutex_);
    draining_ = true;
    work_.Signal();
  }
  if (thread_.joinable()) thread_.join();
}

}  // namespace rope::server
