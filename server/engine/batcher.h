// Batcher: decides on which thread a request runs, and which requests share a batch. It batches
// while the device is busy and never waits while the device is idle: there is no timer.
//
//   Enqueue -+- gathers -> RunGathered on a receiving thread   (direct)
//            +- queues by session -> the batch thread          (batched)
//   Queue   ----^
//
// Direct. A request of at most `direct_bytes_max` that finds the device free gathers with others.
// They run when a receiving thread has no other event (RunGathered), or at once when they are
// enough. Answers of one stream that are ready together share a write to its socket. Other requests
// gain nothing from that: they join what has gathered, or run at once.
//
// A request above the bound of gathering runs by itself, one slice for each call of RunGathered, so
// that the thread looks at its events between two slices. It queues instead if another request has
// slices left. Callers in the process have no events: theirs are one slice (`slices_direct`).
//
// Batched. All other requests queue:
//   1. Enqueue appends the request to the queue of its session.
//   2. The batch thread visits the sessions round-robin and takes one request of each per visit,
//      until a cap is reached or nothing is left. Of a request larger than `slice_bytes_max` it
//      takes one slice per batch. A slice also ends where the executor ends it. The rest goes to
//      the back of its session's queue, so that it delays no other request, not even of its own
//      session. Requests that the executor left out come before such rests.
//   3. Expired and cancelled requests are answered before the batch runs, also those that were
//      expired or cancelled when they came.
//   4. The batch is reported. Then each request whose last slice has run is completed.
//
// Threading:  Thread-safe. No lock is held while a batch runs, is reported or a request completes.
// Ownership:  Enqueue takes the request if and only if it returns OK; `done` then runs exactly
//             once, on any thread, possibly before Enqueue returns.
// Errors:     UNAVAILABLE: draining. Through `done`: DEADLINE_EXCEEDED, CANCELLED, UNAVAILABLE
//             (drain timeout), and the executor's errors.
// Limits:     A batch of the batch thread holds at most bytes_max bytes, tokens_max tokens,
//             requests_max requests, and jobs_max jobs (but always one slice).
//             If every request is one slice, a request that queues behind n others (of all
//             sessions) waits for at most n + 1 batches.
#ifndef ROPE_SERVER_ENGINE_BATCHER_H_
#define ROPE_SERVER_ENGINE_BATCHER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/mutex.h"
#include "server/clock.h"
#include "server/engine/job_tiler.h"
#include "server/engine/session_queue.h"
#include "server/limits.h"
#include "server/request/request.h"
#include "server/telemetry/metrics.h"

namespace rope::server {
namespace limits {

// Requests that gather before they run on the thread that received them: enough to wake clients
// together, few enough that the first of them does not wait long.
inline constexpr int64_t kGatheredRequestsMax = 8;

}  // namespace limits

class Batcher {
 public:
  struct Options {
    int64_t direct_bytes_max = std::numeric_limits<int64_t>::max();
    // False: a direct request whose channels are adjacent is one slice.
    bool slices_direct = true;
    int64_t gathered_requests_max = limits::kGatheredRequestsMax;
    int64_t gathered_bytes_max = 256 * limits::kKiB;
    // A batch keeps every core busy, and delays the next batch only by milliseconds.
    int64_t bytes_max = 32 * limits::kMiB;
    int64_t tokens_max = 64 * 1024;
    int64_t requests_max = 256;
    int64_t slice_bytes_max = limits::kSliceBytesMax;
    int64_t jobs_max = limits::kJobsMax;
    // Direct batches that may run at the same time: the device's threads.
    int direct_slots = 1;
  };

  // Runs slices and sets their status, and may end them earlier: at least one of them has tokens
  // then. Called from several threads at once.
  using RunBatch = std::function<void(absl::Span<Slice>)>;
  // Called once for every batch, on the thread that ran it, before its requests are answered.
  // Several threads may call at once. Must be quick.
  using OnBatch = std::function<void(const BatchReport&)>;

  // `clock` must outlive the batcher. `on_batch` may be empty.
  Batcher(const Options& options, const Clock& clock, RunBatch run_batch, OnBatch on_batch = {});
  // Drains.
  ~Batcher();

  // For a thread that receives requests. The thread must call RunGathered before it sleeps, and
  // after a bounded number of events. REQUIRES: request->run.enqueued is set.
  absl::Status Enqueue(std::unique_ptr<Request>& request);
  // The same for any other thread: the request runs on the batch thread.
  absl::Status Queue(std::unique_ptr<Request>& request);

  // Runs a batch of gathered requests or the next slice of one, or queues them if the device is
  // busy by now. Returns whether any ran; if so, more may be left.
  bool RunGathered();

  // Refuses new requests, finishes the accepted ones, and returns when the last has completed.
  // Requests that still queue after `timeout`, or after StopWaiting, are answered UNAVAILABLE.
  void Drain(absl::Duration timeout = absl::InfiniteDuration());
  void StopWaiting();

 private:
  using RequestList = absl::InlinedVector<std::unique_ptr<Request>, 1>;
  struct Batch {
    absl::InlinedVector<Slice, 1> slices;
    RequestList requests;  // of each slice, until they leave
    std::vector<std::unique_ptr<Request>> expired;
    int64_t bytes = 0;
    int64_t tokens = 0;
    int64_t jobs = 0;
    ClosedBy closed_by = ClosedBy::kDirect;
    absl::Time started;
  };
  bool IsFree() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Push(std::unique_ptr<Request> request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasGatheredEnough() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves gathered requests, or a slice of the first one, to a batch, and counts it as running.
  // REQUIRES: some have gathered.
  Batch StartGathered() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PushGathered() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds the next slice of the request, or the `whole` of it. Returns whether it is the last.
  bool AddSlice(std::unique_ptr<Request> request, bool whole, Batch& batch) const;
  // REQUIRES: the batch is counted in direct_running_, its requests in direct_unfinished_.
  void RunDirect(Batch& batch);
  void Run(Batch& batch);
  void BatchLoop();
  Batch PopBatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The cap that `batch` has reached, or kDrained.
  ClosedBy ReachedCap(const Batch& batch) const;
  int64_t SliceTokens(const Request& request, bool whole, const Batch& batch) const;
  static void AnswerExpired(Batch& batch);
  // Takes requests with tokens left out of the batch. Requests that the batch left out come first.
  static RequestList TakeUnfinished(Batch& batch);
  static void Finish(Batch& batch);

  const Options options_;
  const Clock& clock_;
  const RunBatch run_batch_;
  const OnBatch on_batch_;  // may be empty

  proto::Mutex mutex_;
  // Wakes the batch thread. A condition of the mutex would be evaluated by every Unlock.
  proto::CondVar work_;
  SessionQueue<std::unique_ptr<Request>> queue_ ABSL_GUARDED_BY(mutex_);
  bool batch_running_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::unique_ptr<Request>> gathered_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int> direct_running_ = 0;                // direct batches; grows only under mutex_
  int direct_unfinished_ ABSL_GUARDED_BY(mutex_) = 0;  // requests of these and in gathered_
  DrainState drain_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: it uses all members above
};

}  // namespace rope::server

#endif  // ROPE_SERVER_ENGINE_BATCHER_H_
