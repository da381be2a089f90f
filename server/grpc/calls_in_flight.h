// CallsInFlight: counts calls from the receipt of their message until they are freed.
//
// Threading:  Thread-safe.
#ifndef ROPE_SERVER_GRPC_CALLS_IN_FLIGHT_H_
#define ROPE_SERVER_GRPC_CALLS_IN_FLIGHT_H_

#include <chrono>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "proto/mutex.h"

namespace rope::server {

class CallsInFlight {
 public:
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
  mutable proto::Mutex mutex_;
  proto::CondVar none_;  // count_ has become 0, or stopped_ true
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_CALLS_IN_FLIGHT_H_
