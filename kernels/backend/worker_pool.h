// WorkerPool: a fixed set of threads that share out the items of one call.
//
// Threading:  ParallelFor and WakeUp may be called from any thread, several at once, and from a
//             body; ParallelFor never blocks while an item is left that the caller could run.
// Ownership:  `body` is borrowed until ParallelFor returns.
#ifndef ROPE_KERNELS_BACKEND_WORKER_POOL_H_
#define ROPE_KERNELS_BACKEND_WORKER_POOL_H_

#include <cstdint>
#include <functional>
#include <memory>

namespace rope::kernels {

class WorkerPool {
 public:
  // `threads` counts the caller: 1 starts none. REQUIRES: threads >= 1.
  explicit WorkerPool(int threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  int threads() const;
  // Wakes up who would help with so many items; they wait awake for a call, but not for long. Does
  // nothing while there are calls with items left.
  void WakeUp(int64_t items);
  // Runs body(0) .. body(items - 1), each once, in any order, and returns when all have.
  void ParallelFor(int64_t items, const std::function<void(int64_t)>& body);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_WORKER_POOL_H_
