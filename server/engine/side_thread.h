// SideThread: the thread for what takes longer than a slice, so that no thread that receives
// requests waits for it: planning of large requests, and calls of the control plane. Sessions take
// turns: a work of one step is done after one step of each other session.
//
//   Start* -> waits -> Step -> waits -> ... -> Step returns true, or fails -> End
//
// Threading:  Thread-safe. Step and End run on the side thread, and no lock is held then. A work
//             that is refused ends on the thread that starts it.
// Ownership:  Start* takes the work. End is called exactly once, and the work destroyed after it.
// Errors:     Through End: the error of a Step; RESOURCE_EXHAUSTED: the system has no memory, or,
//             with a retry delay, too many calls wait; CANCELLED; UNAVAILABLE: draining.
// Limits:     A cancellation and the end of a drain are seen between two steps.
#ifndef ROPE_SERVER_ENGINE_SIDE_THREAD_H_
#define ROPE_SERVER_ENGINE_SIDE_THREAD_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/mutex.h"
#include "server/clients/account.h"
#include "server/clock.h"
#include "server/engine/session_queue.h"

namespace rope::server {

// The work of an answer in parts of about half a millisecond. Does the next part on `out`, which is
// the same each time. True: that was the last part, and `out` is the answer.
template <typename Out>
using Steps = std::function<absl::StatusOr<bool>(Out& out)>;

class SideThread {
 public:
  class Work {
   public:
    virtual ~Work() = default;
    // Does the next part of the work, as Steps do.
    virtual absl::StatusOr<bool> Step() = 0;
    // OK: Step has returned true.
    virtual void End(const absl::Status& status) = 0;
  };
  // True once the caller has gone; may be null.
  using Cancelled = std::shared_ptr<std::atomic<bool>>;

  // `clock` must outlive the thread.
  explicit SideThread(const Clock& clock);
  // Drains.
  ~SideThread();

  // Work for a request, which its permit has counted.
  void StartRequest(uint64_t session, std::unique_ptr<Work> work);
  // Work for a call: at most limits::kControlCallsMax wait or run, half of them of an owner.
  void StartCall(uint64_t session, const std::shared_ptr<Account>& account,
                 std::unique_ptr<Work> work, Cancelled cancelled);

  // Refuses new work, and returns when the last has ended. Work that is not done after `timeout`,
  // or after StopWaiting, ends with UNAVAILABLE.
  void Drain(absl::Duration timeout = absl::InfiniteDuration());
  void StopWaiting();

 private:
  struct Entry {
    std::unique_ptr<Work> work;
    uint64_t session = 0;
    Cancelled cancelled;
    Place place = {};  // of a call
  };

  void Start(Entry entry);
  void Loop();
  static absl::StatusOr<bool> StepOf(const Entry& entry);

  const Clock& clock_;

  proto::Mutex mutex_;
  proto::CondVar work_;  // queue_ has grown, or a drain has begun
  SessionQueue<Entry> queue_ ABSL_GUARDED_BY(mutex_);
  DrainState drain_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: it uses all members above
};

}  // namespace rope::server

#endif  // ROPE_SERVER_ENGINE_SIDE_THREAD_H_
