// Batcher: batches while the device is busy and never waits while it is idle.
//
// A request of at most `direct_bytes_max` that finds the device free runs on its caller's thread:
// at once, or, where its caller says so (Request::gathers) and it is small, together with what
// arrives besides until that thread has nothing else to do or a cap is reached. Answers that are
// made one after the other cost less than answers between which clients are woken and ask again.
// Of a client that is alone (its call is the only one there is, and the last request came over the
// same connection) one of at most `direct_alone_bytes_max` runs at once, as a whole.
// Everything else queues; the batch thread takes what is there, runs it, and takes again. There is
// no timer.
//
//   1. Enqueue puts a request into the queue of its session.
//   2. The batch thread visits the sessions in turn and takes one request of each per turn, until a
//      cap is reached or nothing is left. Of a request larger than `slice_bytes_max` it takes one
//      slice per batch; the rest goes to the back of its session's queue, so that it holds up
//      nobody, its own session included.
//   3. Requests that have expired or were cancelled are answered then, before any work; those that
//      had when they came wait for that too.
//   4. The batch is reported, then a request whose last slice has run is completed.
//
// Threading:  Thread-safe. No lock is held while a batch runs, is reported or a request completes.
// Ownership:  Enqueue takes the request if and only if it returns OK; `done` then runs exactly
//             once, on any thread, possibly before Enqueue returns.
// Errors:     UNAVAILABLE: draining. Through `done`: DEADLINE_EXCEEDED, CANCELLED, what the
//             executor said.
// Limits:     A batch of the batch thread holds at most bytes_max bytes, tokens_max tokens,
//             requests_max requests and slices that build rows_max rows (but always one slice).
//             A request that queues waits for at most one batch more than there are requests
//             before it, over sessions, where each of them is one slice.
#ifndef ROPE_SERVER_ENGINE_BATCHER_H_
#define ROPE_SERVER_ENGINE_BATCHER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/mutex.h"
#include "server/clock.h"
#include "server/limits.h"
#include "server/request/request.h"
#include "server/telemetry/batch_report.h"

namespace rope::server {

class Batcher {
 public:
  struct Options {
    int64_t direct_bytes_max = limits::kDirectHostBytesMax;
    int64_t direct_ring_bytes_max = limits::kDirectBytesMax;  // of one that came through a ring
    int64_t direct_alone_bytes_max = limits::kDirectAloneBytesMax;  // of a client that is alone
    int64_t gathered_requests_max = limits::kGatheredRequestsMax;
    int64_t gathered_bytes_max = limits::kGatheredBytesMax;
    int64_t bytes_max = limits::kBatchBytesMax;
    int64_t tokens_max = limits::kBatchTokensMax;
    int64_t requests_max = limits::kBatchRequestsMax;
    int64_t slice_bytes_max = limits::kSliceBytesMax;
    int64_t rows_max = limits::kBatchRowsMax;  // that have to be built
    // Batches that callers may run at the same time: the device's threads.
    int direct_slots = 1;
  };
  // Runs slices and sets their status. Called from several threads at once.
  using RunBatch = std::function<void(absl::Span<Slice>)>;
  // Hears of every batch that ran, before its requests are answered and on the thread that ran it:
  // several may call at once. Must be quick.
  using OnBatch = std::function<void(const BatchReport&)>;

  // `clock` must outlive the batcher. Without `on_batch` nobody hears.
  Batcher(const Options& options, const Clock& clock, RunBatch run_batch, OnBatch on_batch = {});
  // Drains.
  ~Batcher();

  // REQUIRES: request->enqueued is set.
  absl::Status Enqueue(std::unique_ptr<Request>& request);

  // Runs what has gathered, or queues it where the device is busy by now. False: nothing has run.
  bool RunGathered();

  // Refuses new requests, finishes those there are, and returns when the last has completed. What
  // still queues after `timeout`, or StopWaiting, is answered UNAVAILABLE.
  void Drain(absl::Duration timeout = absl::InfiniteDuration());
  void StopWaiting();

 private:
  struct Batch {
    absl::InlinedVector<Slice, 1> slices;
    // Requests whose last slice is in `slices`.
    absl::InlinedVector<std::unique_ptr<Request>, 1> finishing;
    std::vector<std::unique_ptr<Request>> expired;
    int64_t bytes = 0;
    int64_t tokens = 0;
    int64_t build_rows = 0;
    ClosedBy closed_by = ClosedBy::kDirect;
    absl::Time started;
    absl::Time finished;
  };
  using Queue = std::deque<std::unique_ptr<Request>>;

  // Whether the only call there is comes from where the last request came from.
  bool NoteClient(const Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsFree() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayRunDirect(const Request& request, bool alone) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t DirectBytesMax(const Request& request, bool alone) const;
  void Push(std::unique_ptr<Request> request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static void AddWhole(std::unique_ptr<Request> request, Batch& batch);
  bool HasGatheredEnough() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What has gathered, as a batch that runs from now on.
  Batch StartGathered() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PushGathered() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // REQUIRES: counted in direct_running_ and direct_unfinished_.
  void RunDirect(Batch& batch);
  void Run(Batch& batch);
  void BatchLoop();
  Batch PopBatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes from the queue of one session; false: nothing there that this batch may take.
  bool PopFrom(Queue& queue, Batch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The cap that `batch` has reached, or kDrained.
  ClosedBy ReachedCap(const Batch& batch) const;
  int64_t SliceTokens(const Request& request, const Batch& batch) const;
  static void AnswerExpired(Batch& batch);
  void Report(const Batch& batch) const;
  void Finish(Batch& batch);
  // Removes a request that failed before its last slice from the queues.
  std::unique_ptr<Request> Extract(const Request* request) ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const Clock& clock_;
  const RunBatch run_batch_;
  const OnBatch on_batch_;  // may be empty

  proto::Mutex mutex_;
  // Not a condition of the mutex, which every Unlock would evaluate while the thread waits.
  proto::CondVar work_;                                       // for the batch thread
  std::map<uint64_t, Queue> queues_ ABSL_GUARDED_BY(mutex_);  // by session; none is empty
  std::deque<uint64_t> turn_ ABSL_GUARDED_BY(mutex_);         // sessions of queues_, next first
  uint64_t last_session_ ABSL_GUARDED_BY(mutex_) = 0;         // of the last request that came
  bool batch_running_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<Request>> gathered_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int> direct_running_ = 0;                // batches; grows under mutex_ alone
  int direct_unfinished_ ABSL_GUARDED_BY(mutex_) = 0;  // their requests, and those in gathered_
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;  // what queues does not run any more
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;      // the batch thread has nothing left to do
  proto::CondVar drained_;                          // ended_ or abandoned_ has changed
  int64_t batch_number_ ABSL_GUARDED_BY(mutex_) = 0;

  std::thread thread_;  // last: starts when everything else stands
};

}  // namespace rope::server

#endif  // ROPE_SERVER_ENGINE_BATCHER_H_
