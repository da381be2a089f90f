// What waits in the client: bounded timeouts, events of completion queues, threads of callbacks,
// and whether a thread polls before it sleeps.
//
// Threading:  Thread-safe.
#ifndef ROPE_CLIENT_TRANSPORT_WAITER_H_
#define ROPE_CLIENT_TRANSPORT_WAITER_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "rope/options.h"

namespace rope::client {

// At least 0, at most a day, so that no clock overflows when it is added.
template <typename Duration>
std::chrono::microseconds BoundedTimeout(Duration timeout) {
  return std::clamp<Duration>(timeout, Duration(0), std::chrono::hours(24));
}

// What a tag on a gRPC completion queue of the client points to.
class EventHandler {
 public:
  // `ok`: as grpc::CompletionQueue::Next sets it.
  virtual void OnEvent(bool ok) = 0;

 protected:
  ~EventHandler() = default;
};

// Names a connection, by its address. The threads that run its callbacks are marked with it: they
// must not wait for other callbacks of the connection, some of which run on them, after the current
// one.
struct CallbackOwner {};

// Marks the calling thread for the rest of its life. REQUIRES: `owner` outlives the thread.
void EnterCallbackThread(const CallbackOwner& owner);
bool IsCallbackThreadOf(const CallbackOwner& owner);

// How long a thread polls before it sleeps: ConnectOptions::spin, or its default.
std::chrono::microseconds SpinOf(const ConnectOptions& options);

// Decides whether a waiting thread may poll for its answer, for SpinOf. Polling is faster while
// processors are free. More polling threads than that take processor time from the server for which
// they wait. So only half as many threads of the process as it has processors may poll.
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
