#include "kernels/backend/worker_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <iterator>

#include "kernels/check.h"

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

WorkerPool::WorkerPool(int threads) {
  ROPE_CHECK(threads >= 1);
  for (int i = 1; i < threads; ++i) {
    const Side side = i % 2 == 1 ? Side::kEnd : Side::kBegin;
    workers_.emplace_back([this, side] { Work(side); });
  }
}

WorkerPool::~WorkerPool() {
  {
    proto::MutexLock lock(&mu_);
    stopping_ = true;
    work_.SignalAll();
  }
  for (std::thread& worker : workers_) worker.join();
}

void WorkerPool::ParallelFor(int64_t items, const std::function<void(int64_t)>& body) {
  if (items <= 1 || workers_.empty()) {
    for (int64_t i = 0; i < items; ++i) body(i);
    return;
  }
  Call call{.body = &body, .items = items};
  {
    proto::MutexLock lock(&mu_);
    calls_.push_back(&call);
    queued_.fetch_add(1, std::memory_order_relaxed);
    const int64_t helpers = std::min<int64_t>(items - 1, std::ssize(workers_));
    // Spinning workers need no signal, but only if no earlier call is queued that they may take.
    const int64_t awake = calls_.size() == 1 ? awake_ : 0;
    for (int64_t i = awake; i < helpers; ++i) work_.Signal();
  }
  RunItems(call, Side::kBegin);
  Retire(call);
}

void WorkerPool::RunItems(Call& call, Side side) {
  while (call.taken.fetch_add(1) < call.items) {
    (*call.body)(side == Side::kBegin ? call.from_begin.fetch_add(1)
                                      : call.items - 1 - call.from_end.fetch_add(1));
  }
}

// Spins first, because the last items usually end soon.
void WorkerPool::Retire(Call& call) {
  {
    proto::MutexLock lock(&mu_);
    Unqueue(call);
  }
  SpinUntil([&] { return call.helpers.load(std::memory_order_acquire) == 0; });
  proto::MutexLock lock(&mu_);  // a worker's last access to `call` is under mu_
  while (call.helpers.load(std::memory_order_acquire) != 0) done_.Wait(&mu_);
}

void WorkerPool::Unqueue(Call& call) {
  const auto found = std::find(calls_.begin(), calls_.end(), &call);
  if (found == calls_.end()) return;
  calls_.erase(found);
  queued_.fetch_sub(1, std::memory_order_relaxed);
}

// mu_ is held except in RunItems, in AwaitNextCall and while it waits on work_. A stopping pool
// still finishes queued calls.
void WorkerPool::Work(Side side) {
  proto::MutexLock lock(&mu_);
  while (true) {
    if (calls_.empty()) AwaitNextCall();
    while (calls_.empty() && !stopping_) work_.Wait(&mu_);
    if (calls_.empty()) return;
    Call& call = *calls_.front();
    call.helpers.fetch_add(1);
    mu_.Unlock();
    RunItems(call, side);
    mu_.Lock();
    Unqueue(call);
    if (call.helpers.fetch_sub(1, std::memory_order_release) == 1) done_.SignalAll();
  }
}

void WorkerPool::AwaitNextCall() {
  ++awake_;
  mu_.Unlock();
  SpinUntil([this] { return queued_.load(std::memory_order_relaxed) != 0; });
  mu_.Lock();
  --awake_;
}

}  // namespace rope::kernels
