// WorkerPool: a fixed set of threads that share the items of a ParallelFor call.
//
// The calling thread runs items too, and workers help it. States of a worker:
//
//   running --no items left--> spinning --50 us without a call--> sleeping
//      ^                          |                                  |
//      +---------- call ----------+-------------- call --------------+
//
// A worker that the system wakes on its caller's CPU moves to another one.
//
// Threading:  ParallelFor may be called from several threads at once, and from a body.
//             ParallelFor never blocks while an item is left that the caller could run. No lock is
//             held while a body runs.
// Ownership:  `body` is borrowed until ParallelFor returns.
// Limits:     ParallelFor waits at most for the items that workers have started.
#ifndef ROPE_KERNELS_BACKEND_WORKER_POOL_H_
#define ROPE_KERNELS_BACKEND_WORKER_POOL_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "proto/mutex.h"

namespace rope::kernels {

class WorkerPool {
 public:
  // `threads` includes the calling thread, so 1 starts no worker. REQUIRES: threads >= 1.
  explicit WorkerPool(int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }
  // Runs body(0) to body(items - 1), each once and in any order. Returns when all have returned.
  void ParallelFor(int64_t items, const std::function<void(int64_t)>& body);

 private:
  // One ParallelFor, on its caller's stack. Threads take items without a lock, by incrementing
  // `taken` and then the count of their side. A worker reaches a call only through calls_ and
  // raises `helpers` under mu_. After Unqueue no new worker can enter, and the call may be
  // destroyed once `helpers` is 0.
  struct Call {
    const std::function<void(int64_t)>* body;
    int64_t items;
    int cpu;  // where the caller ran
    std::atomic<int64_t> taken = 0;
    std::atomic<int64_t> from_begin = 0;  // of `taken`
    std::atomic<int64_t> from_end = 0;
    std::atomic<int64_t> helpers = 0;  // workers in RunItems; raised under mu_ only
  };

  // Which items a thread takes. With a side each, two threads go through memory in order, and have
  // the same part of it in each call.
  enum class Side { kBegin, kEnd };

  // Queues the call and wakes workers for it. Returns whether the caller should let them run first:
  // a worker that an earlier call woke has not run yet, or the call is large.
  bool Queue(Call& call);
  // Runs items until none is left. No lock is held.
  static void RunItems(Call& call, Side side);
  // Removes the call from the queue, then waits until no worker is in it.
  void Retire(Call& call);
  void Unqueue(Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A worker's loop.
  void Work(Side side);
  // Spins until a call is queued, for a bounded time. Releases mu_ meanwhile.
  void AwaitNextCall() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for a signal. Releases mu_ meanwhile.
  void Sleep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::vector<std::thread> workers_;
  proto::Mutex mu_;
  proto::CondVar work_;
  proto::CondVar done_;
  std::deque<Call*> calls_ ABSL_GUARDED_BY(mu_);  // calls that may still have items
  std::atomic<int64_t> queued_ = 0;               // calls_.size(), for reads without the lock
  int64_t awake_ ABSL_GUARDED_BY(mu_) = 0;        // spinning workers; they read queued_
  int64_t asleep_ ABSL_GUARDED_BY(mu_) = 0;       // workers that wait on work_
  int64_t woken_ ABSL_GUARDED_BY(mu_) = 0;        // of these: signalled, but not running yet
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_WORKER_POOL_H_
