// Housekeeper: the thread that looks after the server. Each look says when it is due again, and
// knows no other look. Wake hurries the first one.
//
// Threading:  Looks run on the thread, one after another. Wake runs on any.
// Ownership:  What the looks use must outlive it.
// Limits:     A look that takes long delays the others.
#ifndef ROPE_SERVER_HOUSEKEEPER_H_
#define ROPE_SERVER_HOUSEKEEPER_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "proto/mutex.h"

namespace rope::server {

class Housekeeper {
 public:
  // Returns the time until it is due again.
  using Look = std::function<absl::Duration()>;

  // REQUIRES: there is a look.
  explicit Housekeeper(std::vector<Look> looks)
      : looks_(std::move(looks)), thread_([this] { Loop(); }) {}
  // Stops the thread.
  ~Housekeeper() {
    {
      proto::MutexLock lock(&mutex_);
      stopped_ = true;
      changed_.Signal();
    }
    thread_.join();
  }

  // A message is being read. Unless the first look is due within kLong, it is due in kSoon: then
  // the message is complete, or late and worth a look. Cheap if the thread has been woken.
  void Wake() {
    if (woken_.load(std::memory_order_relaxed)) return;
    proto::MutexLock lock(&mutex_);
    woken_.store(true);
    changed_.Signal();
  }

 private:
  using Steady = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kSoon{10};
  static constexpr std::chrono::milliseconds kLong{50};

  void Loop() {
    std::vector<Steady::time_point> due(looks_.size());
    while (true) {
      const auto now = Steady::now();
      for (size_t i = 0; i < looks_.size(); ++i) {
        if (due[i] > now) continue;
        // From its end on: what a look frees takes a moment to go.
        const auto rest = absl::ToChronoNanoseconds(looks_[i]());
        due[i] = Steady::now() + rest;
      }
      const bool is_long = due.front() - now >= kLong;
      if (!Rest(*std::ranges::min_element(due), is_long)) return;
      if (is_long && woken_.exchange(false)) {
        due.front() = std::min(due.front(), Steady::now() + kSoon);
      }
    }
  }
  // `wakes`: Wake ends it. False: stopped.
  bool Rest(Steady::time_point until, bool wakes) {
    proto::MutexLock lock(&mutex_);
    while (!stopped_ && Steady::now() < until && !(wakes && woken_.load())) {
      changed_.WaitFor(&mutex_, until - Steady::now());
    }
    return !stopped_;
  }

  const std::vector<Look> looks_;
  std::atomic<bool> woken_ = false;
  proto::Mutex mutex_;
  proto::CondVar changed_;  // woken_ or stopped_
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all members above
};

}  // namespace rope::server

#endif  // ROPE_SERVER_HOUSEKEEPER_H_
