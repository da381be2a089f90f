// Decides whether a failed call is tried again, and when.
//
// UNAVAILABLE is retried with exponential backoff; RESOURCE_EXHAUSTED only where the server gave a
// delay (its queue is full; without one the request is too large for ever), and never before that
// delay has passed. A call that is not idempotent is retried only where the answer carries a delay
// and says that nothing ran: a lost connection proves nothing.
//
// Threading:  Functions only; random numbers come from the caller.
#ifndef ROPE_CLIENT_RETRY_H_
#define ROPE_CLIENT_RETRY_H_

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

}  // namespace rope::client

#endif  // ROPE_CLIENT_RETRY_H_
