// WorkerPool: a fixed set of threads that share the items of a ParallelFor call.
//
// The calling thread runs items too, and workers help it. States of a worker:
//
//   running --no items left--> spinning --50 us without a call--> sleeping
//      ^                          |                                  |
//      +---------- call ----------+-------------- call --------------+
//
// Threading:  ParallelFor may be called from several threads at once, and from a body.
//             ParallelFor never blocks while an item is left that the caller could run. No lock is
//             held while a body runs.
// Ownership:  `body` is borrowed until ParallelFor returns.
// Limits:     ParallelFor waits at most for the items that workers have started.
#ifndef ROPE_KERNELS_BACKEND_WORKER_POOL_H_
#define ROPE_KERNELS_BACKEND_WORKER_POOL_H_

#include <cstdint>
#include <functional>
#include <memory>

namespace rope::kernels {

class WorkerPool {
 public:
  // `threads` includes the calling thread, so 1 starts no worker. REQUIRES: threads >= 1.
  explicit WorkerPool(int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int threads() const;
  // Runs body(0) to body(items - 1), each once and in any order. Returns when all have returned.
  void ParallelFor(int64_t items, const std::function<void(int64_t)>& body);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_WORKER_POOL_H_
