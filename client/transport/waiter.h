// Waiter: a thread that waits for its answer. Polling pays while there are processors for it: more
// threads that poll than that take the time of the server that they wait for.
//
// For how long it pays is ConnectOptions::spin.
//
// Threading:  Thread-safe; counts the threads of this process.
#ifndef ROPE_CLIENT_TRANSPORT_WAITER_H_
#define ROPE_CLIENT_TRANSPORT_WAITER_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "rope/options.h"

namespace rope::client {

// How long a thread polls for its answer before it sleeps.
std::chrono::microseconds SpinOf(const ConnectOptions& options);

class Waiter {
 public:
  Waiter() : may_poll_(waiting_.fetch_add(1, std::memory_order_relaxed) < PollersMax()) {}
  ~Waiter() { waiting_.fetch_sub(1, std::memory_order_relaxed); }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  bool may_poll() const { return may_poll_; }

 private:
  static int PollersMax() {
    static const int max = std::max(static_cast<int>(std::thread::hardware_concurrency() / 2), 1);
    return max;
  }

  static inline std::atomic<int> waiting_ = 0;
  const bool may_poll_;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_TRANSPORT_WAITER_H_
