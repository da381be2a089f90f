#include "kernels/backend/worker_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "kernels/check.h"
#include "proto/mutex.h"

namespace rope::kernels {
namespace {

// A thread without items spins for this long before it sleeps: a caller until its helpers are done,
// a worker until the next call, which comes soon when a large tensor is rotated in slices. Waking a
// thread costs both sides as much as an item.
constexpr std::chrono::microseconds kSpin(50);

// Yields until `done()`, or for kSpin on the steady clock.
template <typename Done>
void SpinUntil(const Done& done) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + kSpin;
  while (!done() && Clock::now() < deadline) sched_yield();
}

}  // namespace

class WorkerPool::Impl {
 public:
  explicit Impl(int threads) {
    ROPE_CHECK(threads >= 1);
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { Work(); });
  }

  ~Impl() {
    {
      proto::MutexLock lock(&mu_);
      stopping_ = true;
      work_.SignalAll();
    }
    for (std::thread& worker : workers_) worker.join();
  }

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  void ParallelFor(int64_t items, const std::function<void(int64_t)>& body) {
    if (items <= 1 || workers_.empty()) {
      for (int64_t i = 0; i < items; ++i) body(i);
      return;
    }
    Call call{.body = &body, .items = items};
    {
      proto::MutexLock lock(&mu_);
      calls_.push_back(&call);
      queued_.fetch_add(1, std::memory_order_relaxed);
      const int64_t helpers = Helpers(items);
      // Spinning workers need no signal, but only if no earlier call is queued that they may take.
      const int64_t awake = calls_.size() == 1 ? awake_ : 0;
      for (int64_t i = awake; i < helpers; ++i) work_.Signal();
    }
    RunItems(call);
    Retire(call);
  }

 private:
  // One ParallelFor, on its caller's stack. Threads take items by incrementing `next`, without a
  // lock. A worker reaches a call only through calls_ and raises `helpers` under mu_. After Unqueue
  // no new worker can enter, and the call may be destroyed once `helpers` is 0.
  struct Call {
    const std::function<void(int64_t)>* body;
    int64_t items;
    std::atomic<int64_t> next = 0;
    std::atomic<int64_t> helpers = 0;  // workers in RunItems; raised under mu_ only
  };

  int64_t Helpers(int64_t items) const {
    return std::min(items - 1, static_cast<int64_t>(workers_.size()));
  }

  // Runs items until none is left. No lock is held.
  static void RunItems(Call& call) {
    for (int64_t i = call.next.fetch_add(1); i < call.items; i = call.next.fetch_add(1)) {
      (*call.body)(i);
    }
  }

  // Removes the call from the queue, then waits until no worker is in it. Spins first, because the
  // last items usually end soon.
  void Retire(Call& call) {
    {
      proto::MutexLock lock(&mu_);
      Unqueue(call);
    }
    SpinUntil([&] { return call.helpers.load(std::memory_order_acquire) == 0; });
    proto::MutexLock lock(&mu_);  // a worker's last access to `call` is under mu_
    while (call.helpers.load(std::memory_order_acquire) != 0) done_.Wait(&mu_);
  }

  void Unqueue(Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto found = std::find(calls_.begin(), calls_.end(), &call);
    if (found == calls_.end()) return;
    calls_.erase(found);
    queued_.fetch_sub(1, std::memory_order_relaxed);
  }

  // A worker's loop. mu_ is held except in RunItems, in AwaitNextCall and while it waits on work_.
  // A stopping pool still finishes queued calls.
  void Work() {
    proto::MutexLock lock(&mu_);
    while (true) {
      if (calls_.empty()) AwaitNextCall();
      while (calls_.empty() && !stopping_) work_.Wait(&mu_);
      if (calls_.empty()) return;
      Call& call = *calls_.front();
      call.helpers.fetch_add(1);
      mu_.Unlock();
      RunItems(call);
      mu_.Lock();
      Unqueue(call);
      if (call.helpers.fetch_sub(1, std::memory_order_release) == 1) done_.SignalAll();
    }
  }

  // Spins until a call is queued, for at most kSpin. Releases mu_ meanwhile.
  void AwaitNextCall() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ++awake_;
    mu_.Unlock();
    SpinUntil([this] { return queued_.load(std::memory_order_relaxed) != 0; });
    mu_.Lock();
    --awake_;
  }

  std::vector<std::thread> workers_;
  proto::Mutex mu_;
  proto::CondVar work_;
  proto::CondVar done_;
  std::deque<Call*> calls_ ABSL_GUARDED_BY(mu_);  // calls that may still have items
  std::atomic<int64_t> queued_ = 0;               // calls_.size(), for reads without the lock
  int64_t awake_ ABSL_GUARDED_BY(mu_) = 0;        // spinning workers; they read queued_
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

WorkerPool::WorkerPool(int threads) : impl_(std::make_unique<Impl>(threads)) {}
WorkerPool::~WorkerPool() = default;
int WorkerPool::threads() const {
  return impl_->threads();
}
void WorkerPool::ParallelFor(int64_t items, const std::function<void(int64_t)>& body) {
  impl_->ParallelFor(items, body);
}

}  // namespace rope::kernels
