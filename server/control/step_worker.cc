#include "server/control/step_worker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/error.h"
#include "server/limits.h"

namespace rope::server {

StepWorker::StepWorker() : thread_([this] { Loop(); }) {}

StepWorker::~StepWorker() {
  Drain();
}

absl::Status StepWorker::Start(std::unique_ptr<Job>& job, Cancelled cancelled) {
  proto::MutexLock lock(&mutex_);
  if (draining_) return Draining();
  if (static_cast<int64_t>(waiting_.size()) >= limits::kControlJobsMax) {
    return RetryLater(Reason::kQueueFull, "queue",
                      absl::StrCat("call number ", waiting_.size() + 1, " that takes long"),
                      absl::StrCat("at most ", limits::kControlJobsMax, " at a time"));
  }
  waiting_.push_back({std::move(job), std::move(cancelled)});
  work_.Signal();
  return absl::OkStatus();
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
    }
    const absl::StatusOr<bool> finished = StepOf(entry);
    if (!finished.ok() || *finished) {
      entry.job->Done(finished.status());
      continue;
    }
    proto::MutexLock lock(&mutex_);
    waiting_.push_back(std::move(entry));
  }
}

absl::StatusOr<bool> StepWorker::StepOf(const Entry& entry) {
  if (draining_) return Draining();
  if (entry.cancelled != nullptr && entry.cancelled->load(std::memory_order_relaxed)) {
    return MakeError({.reason = Reason::kCancelled}, "request: cancelled while tables were built");
  }
  return entry.job->Step();
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
