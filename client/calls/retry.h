// Decides whether a failed call is tried again, and when.
//
// UNAVAILABLE is retried with exponential backoff; RESOURCE_EXHAUSTED only where the server gave a
// delay (its queue is full; without one the request is too large for ever), and never before that
// delay has passed. A call that is not idempotent is retried only where the answer carries a delay
// and says that nothing ran: a lost connection proves nothing.
//
// Threading:  Functions and values; random numbers come from the caller.
#ifndef ROPE_CLIENT_CALLS_RETRY_H_
#define ROPE_CLIENT_CALLS_RETRY_H_

#include <chrono>
#include <optional>

#include "rope/status.h"

namespace rope::client {

struct RetryPolicy {
  int attempts_max = 4;
  std::chrono::milliseconds backoff_initial{100};  // doubles with each attempt
  std::chrono::milliseconds backoff_max{5000};
};

struct RetryState {
  int attempts = 1;  // made so far
  bool idempotent = true;
  std::chrono::microseconds elapsed{0};  // since the call began
  std::chrono::microseconds timeout{0};  // of the whole call
};

// How long to wait before the next attempt; nullopt: there is none. `random` is in [0, 1).
std::optional<std::chrono::microseconds> RetryDelay(const RetryPolicy& policy,
                                                    const RetryState& state, const Status& status,
                                                    double random);

// The attempts of one call, from its first on, and the time that it has left.
class Attempts {
 public:
  Attempts(int attempts_max, std::chrono::milliseconds timeout);

  std::chrono::microseconds Remaining() const { return timeout_ - Elapsed(); }
  // After an attempt that failed: how long to wait before the next; nullopt: it was the last.
  // `idempotent`: of that attempt; one that was never sent is.
  std::optional<std::chrono::microseconds> DelayAfter(const Status& status, bool idempotent,
                                                      double random);

 private:
  std::chrono::microseconds Elapsed() const;

  const RetryPolicy policy_;
  const std::chrono::microseconds timeout_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  int made_ = 0;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CALLS_RETRY_H_
