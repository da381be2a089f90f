// Mutex, SharedMutex, CondVar and Notification: the standard library's, with the annotations of
// clang's thread-safety analysis. Every lock of the project is one of these, and none is of Abseil
// or gRPC: the packaged libraries are not built for the thread sanitizer, so it could not see the
// ordering that their locks establish. Any folder may include this header; it includes no other
// header of the project.
//
// Threading:  Thread-safe. Timeouts use the steady clock.
// Ownership:  A lock object holds its mutex until the end of its scope.
// Limits:     Not recursive. CondVar may wake without a signal: wait in a loop.
#ifndef ROPE_PROTO_MUTEX_H_
#define ROPE_PROTO_MUTEX_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>

#include "absl/base/thread_annotations.h"

namespace rope::proto {

class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// One writer, or any number of readers.
class ABSL_LOCKABLE SharedMutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mutex_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  void LockShared() ABSL_SHARED_LOCK_FUNCTION() { mutex_.lock_shared(); }
  void UnlockShared() ABSL_UNLOCK_FUNCTION() { mutex_.unlock_shared(); }

 private:
  std::shared_mutex mutex_;
};

template <typename AnyMutex>
class ABSL_SCOPED_LOCKABLE ExclusiveLock {
 public:
  explicit ExclusiveLock(AnyMutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(*mutex) {
    mutex_.Lock();
  }
  ~ExclusiveLock() ABSL_UNLOCK_FUNCTION() { mutex_.Unlock(); }
  ExclusiveLock(const ExclusiveLock&) = delete;
  ExclusiveLock& operator=(const ExclusiveLock&) = delete;

 private:
  AnyMutex& mutex_;
};
using MutexLock = ExclusiveLock<Mutex>;
using WriterMutexLock = ExclusiveLock<SharedMutex>;

class ABSL_SCOPED_LOCKABLE ReaderMutexLock {
 public:
  explicit ReaderMutexLock(SharedMutex* mutex) ABSL_SHARED_LOCK_FUNCTION(mutex) : mutex_(*mutex) {
    mutex_.LockShared();
  }
  ~ReaderMutexLock() ABSL_UNLOCK_FUNCTION() { mutex_.UnlockShared(); }
  ReaderMutexLock(const ReaderMutexLock&) = delete;
  ReaderMutexLock& operator=(const ReaderMutexLock&) = delete;

 private:
  SharedMutex& mutex_;
};

class CondVar {
 public:
  void Wait(Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // False: `timeout` has passed.
  bool WaitFor(Mutex* mutex, std::chrono::nanoseconds timeout)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
    const bool signalled = condition_.wait_for(lock, timeout) == std::cv_status::no_timeout;
    lock.release();
    return signalled;
  }
  void Signal() { condition_.notify_one(); }
  void SignalAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

// An event that happens once.
class Notification {
 public:
  Notification() = default;
  // Waits until Notify has returned: a waiter that saw it notified may destroy it at once.
  ~Notification() { MutexLock lock(&mutex_); }
  Notification(const Notification&) = delete;
  Notification& operator=(const Notification&) = delete;

  // REQUIRES: called once.
  void Notify() {
    MutexLock lock(&mutex_);
    notified_.store(true, std::memory_order_release);
    condition_.SignalAll();
  }
  bool HasBeenNotified() const { return notified_.load(std::memory_order_acquire); }
  void WaitForNotification() const {
    if (HasBeenNotified()) return;
    MutexLock lock(&mutex_);
    while (!HasBeenNotified()) condition_.Wait(&mutex_);
  }
  // True: Notify was called within `timeout`.
  bool WaitForNotificationWithTimeout(std::chrono::nanoseconds timeout) const {
    const auto end = std::chrono::steady_clock::now() + timeout;
    MutexLock lock(&mutex_);
    while (!HasBeenNotified()) {
      const auto left = end - std::chrono::steady_clock::now();
      if (left.count() <= 0) return false;
      condition_.WaitFor(&mutex_, left);
    }
    return true;
  }

 private:
  mutable Mutex mutex_;
  mutable CondVar condition_;
  std::atomic<bool> notified_ = false;  // written under mutex_ alone
};

}  // namespace rope::proto

#endif  // ROPE_PROTO_MUTEX_H_
