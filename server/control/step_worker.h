// StepWorker: runs what calls of the control plane compute for longer than a slice, on a thread of
// its own, so that no thread that serves requests waits. Jobs take turns: a short one is done after
// one step of each job before it.
//
//   Start -> waiting -> Step -> waiting -> ... -> Step returns true, or fails -> Done
//
// Threading:  Thread-safe. Step and Done run on the worker's thread, and no lock is held then.
// Ownership:  Start takes the job if and only if it returns OK. Done is then called exactly once,
//             and the job destroyed after it.
// Errors:     Start: RESOURCE_EXHAUSTED with a retry delay: limits::kControlJobsMax jobs wait
//             already, or limits::kSessionsControlJobsMax of the session. UNAVAILABLE: draining.
//             Done: the error of a Step; RESOURCE_EXHAUSTED: the system has no memory; CANCELLED;
//             UNAVAILABLE: draining.
// Limits:     A cancellation or a drain is seen between two steps.
#ifndef ROPE_SERVER_CONTROL_STEP_WORKER_H_
#define ROPE_SERVER_CONTROL_STEP_WORKER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/mutex.h"

namespace rope::server {

class StepWorker {
 public:
  class Job {
   public:
    virtual ~Job() = default;
    // Does the next part of the work, about half a millisecond of it. True: that was the last part.
    virtual absl::StatusOr<bool> Step() = 0;
    // Answers the call. OK: Step has returned true.
    virtual void Done(const absl::Status& status) = 0;
    // Whether all steps together take about a millisecond, so that the thread that received the
    // call may run them (RunHere).
    virtual bool IsShort() const { return false; }
  };
  // True once the caller has gone; may be null.
  using Cancelled = std::shared_ptr<std::atomic<bool>>;

  StepWorker();
  // Drains.
  ~StepWorker();

  // `session`: the connection that the job is for.
  absl::Status Start(std::unique_ptr<Job>& job, uint64_t session, Cancelled cancelled);

  // Runs all steps of a job on this thread.
  static void RunHere(Job& job);

  // Refuses new jobs, ends all others with UNAVAILABLE, and returns when Done of each has returned.
  void Drain();

 private:
  struct Entry {
    std::unique_ptr<Job> job;
    uint64_t session = 0;
    Cancelled cancelled;
  };

  absl::Status CheckRoom(uint64_t session) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Loop();
  absl::StatusOr<bool> StepOf(const Entry& entry);

  std::atomic<bool> draining_ = false;

  proto::Mutex mutex_;
  proto::CondVar work_;  // waiting_ or draining_ has changed
  std::deque<Entry> waiting_ ABSL_GUARDED_BY(mutex_);
  std::optional<uint64_t> session_in_step_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: it uses all members above
};

}  // namespace rope::server

#endif  // ROPE_SERVER_CONTROL_STEP_WORKER_H_
