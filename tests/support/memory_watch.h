// Samples the memory of another process every few milliseconds until it is destroyed.
//
// Threading:  Thread-safe; a background thread takes the samples.
#ifndef ROPE_TESTS_SUPPORT_MEMORY_WATCH_H_
#define ROPE_TESTS_SUPPORT_MEMORY_WATCH_H_

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

#include "proto/mutex.h"
#include "tests/support/process_memory.h"

namespace rope::testing {

class MemoryWatch {
 public:
  explicit MemoryWatch(pid_t pid)
      : pid_(pid),
        idle_bytes_(AnonymousBytes(pid)),
        now_bytes_(idle_bytes_),
        peak_bytes_(idle_bytes_),
        thread_([this] { Watch(); }) {}
  ~MemoryWatch() {
    stop_.Notify();
    thread_.join();
  }
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;

  // Anonymous memory: of the first sample, of the latest sample, and the maximum.
  int64_t idle_bytes() const { return idle_bytes_; }
  int64_t now_bytes() {
    const proto::MutexLock lock(&mu_);
    return now_bytes_;
  }
  int64_t peak_bytes() {
    const proto::MutexLock lock(&mu_);
    return peak_bytes_;
  }

  // Returns once a sample is at most `bytes`. False: not within `bound`.
  bool AwaitAtMost(int64_t bytes, std::chrono::seconds bound) {
    const auto end = std::chrono::steady_clock::now() + bound;
    const proto::MutexLock lock(&mu_);
    while (now_bytes_ > bytes) {
      const auto left = end - std::chrono::steady_clock::now();
      if (left.count() <= 0) return false;
      changed_.WaitFor(&mu_, left);
    }
    return true;
  }

 private:
  static constexpr std::chrono::milliseconds kPeriod{2};

  void Watch() {
    while (!stop_.WaitForNotificationWithTimeout(kPeriod)) {
      const int64_t bytes = AnonymousBytes(pid_);
      const proto::MutexLock lock(&mu_);
      now_bytes_ = bytes;
      peak_bytes_ = std::max(peak_bytes_, bytes);
      changed_.SignalAll();
    }
  }

  const pid_t pid_;
  const int64_t idle_bytes_;
  proto::Mutex mu_;
  proto::CondVar changed_;
  int64_t now_bytes_ ABSL_GUARDED_BY(mu_);
  int64_t peak_bytes_ ABSL_GUARDED_BY(mu_);
  proto::Notification stop_;
  std::thread thread_;  // destroyed first
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_MEMORY_WATCH_H_
