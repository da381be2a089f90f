// CallsInFlight: counts calls from the receipt of their message until they are freed, and call
// objects from when they are armed.
//
// Threading:  Thread-safe.
#ifndef ROPE_SERVER_GRPC_CALLS_IN_FLIGHT_H_
#define ROPE_SERVER_GRPC_CALLS_IN_FLIGHT_H_

#include <atomic>
#include <chrono>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "proto/mutex.h"

namespace rope::server {

class CallsInFlight {
 public:
  // Counts a call object for as long as it exists: armed, reading, handled or ending.
  class Open {
   public:
    explicit Open(CallsInFlight& calls) : calls_(calls) { calls_.open_.fetch_add(1); }
    ~Open() {
      if (calls_.open_.fetch_sub(1) == 1) calls_.open_.notify_all();
    }
    Open(const Open&) = delete;
    Open& operator=(const Open&) = delete;

   private:
    CallsInFlight& calls_;
  };

  // Waits until no call object exists. A queue may be shut down only then, because gRPC aborts the
  // process if a call starts a step on a queue that is shut down. REQUIRES: the gRPC server is shut
  // down, so that every step comes back and no call is armed any more.
  void AwaitNoneOpen() const {
    for (int64_t open = open_.load(); open != 0; open = open_.load()) open_.wait(open);
  }

  void Add() {
    proto::MutexLock lock(&mutex_);
    ++count_;
  }
  void Remove() {
    proto::MutexLock lock(&mutex_);
    if (--count_ == 0) none_.SignalAll();
  }
  int64_t count() const {
    proto::MutexLock lock(&mutex_);
    return count_;
  }
  // Waits until the count is 0, for at most `timeout`, or until StopWaiting. Returns whether the
  // count is 0.
  bool AwaitNone(absl::Duration timeout) {
    const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout);
    proto::MutexLock lock(&mutex_);
    while (count_ != 0 && !stopped_) {
      const auto left = end - std::chrono::steady_clock::now();
      if (left <= left.zero()) break;
      none_.WaitFor(&mutex_, left);
    }
    return count_ == 0;
  }
  // AwaitNone returns at once from now on.
  void StopWaiting() {
    proto::MutexLock lock(&mutex_);
    stopped_ = true;
    none_.SignalAll();
  }

 private:
  std::atomic<int64_t> open_{0};
  mutable proto::Mutex mutex_;
  proto::CondVar none_;  // count_ has become 0, or stopped_ true
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_CALLS_IN_FLIGHT_H_
