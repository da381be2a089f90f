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

// A call of so many items lets the workers that it wakes run first. With fewer, it would have ended
// before they move.
constexpr int64_t kManyItems = 16;

// Yields until `done()`, or for kSpin on the steady clock.
template <typename Done>
void SpinUntil(const Done& done) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + kSpin;
  while (!done() && Clock::now() < deadline) sched_yield();
}

// Moves this thread to any other CPU that it may use. A virtual machine's CPU that sleeps looks as
// if its host had taken it, so Linux wakes a thread where its waker runs, and it waits there for
// milliseconds.
void LeaveCpu(int cpu) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  cpu_set_t others = allowed;
  CPU_CLR(cpu, &others);
  if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof(others), &others) != 0) return;
  sched_setaffinity(0, sizeof(allowed), &allowed);
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
  Call call{.body = &body, .items = items, .cpu = sched_getcpu()};
  if (Queue(call)) sched_yield();  // a woken worker may wait for this CPU
  RunItems(call, Side::kBegin);
  Retire(call);
}

bool WorkerPool::Queue(Call& call) {
  proto::MutexLock lock(&mu_);
  calls_.push_back(&call);
  queued_.fetch_add(1, std::memory_order_relaxed);
  const bool late = woken_ > 0;
  int64_t helpers = std::min<int64_t>(call.items - 1, std::ssize(workers_));
  // Spinning and woken workers need no signal, but only if no earlier call is queued that they may
  // take.
  if (calls_.size() == 1) helpers -= awake_ + woken_;
  for (; helpers > 0 && woken_ < asleep_; --helpers, ++woken_) work_.Signal();
  return late || (woken_ > 0 && call.items >= kManyItems);
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
    if (calls_.empty() && !stopping_) Sleep();
    if (calls_.empty() && stopping_) return;
    if (calls_.empty()) continue;
    Call& call = *calls_.front();
    call.helpers.fetch_add(1);
    mu_.Unlock();
    if (sched_getcpu() == call.cpu) LeaveCpu(call.cpu);
    RunItems(call, side);
    mu_.Lock();
    Unqueue(call);
    if (call.helpers.fetch_sub(1, std::memory_order_release) == 1) done_.SignalAll();
  }
}

void WorkerPool::Sleep() {
  ++asleep_;
  work_.Wait(&mu_);
  --asleep_;
  woken_ = std::max<int64_t>(woken_ - 1, 0);  // 0: no signal came
}

void WorkerPool::AwaitNextCall() {
  ++awake_;
  mu_.Unlock();
  SpinUntil([this] { return queued_.load(std::memory_order_relaxed) != 0; });
  mu_.Lock();
  --awake_;
}

}  // namespace rope::kernels
