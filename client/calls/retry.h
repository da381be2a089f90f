// Decides whether and when a failed call is retried.
//
// UNAVAILABLE is retried with exponential backoff. RESOURCE_EXHAUSTED is retried only if the server
// gave a delay, and not before that delay (its queue is full); without a delay the request exceeds
// a limit. A call that is not idempotent is retried only if the answer contains a delay and says
// that nothing ran; a lost connection proves neither.
//
// Threading:  Functions and values; the caller supplies random numbers.
#ifndef ROPE_CLIENT_CALLS_RETRY_H_
#define ROPE_CLIENT_CALLS_RETRY_H_

#include <chrono>
#include <optional>

#include "client/transport/stub.h"
#include "rope/options.h"
#include "rope/status.h"

namespace rope::client {

struct RetryState {
  int attempts = 1;  // attempts made so far
  bool idempotent = true;
  std::chrono::microseconds left{0};  // of the time of the whole call
};

// The delay before the next attempt; nullopt: do not retry. `random` is in [0, 1).
std::optional<std::chrono::microseconds> RetryDelay(const CallOptions& policy,
                                                    const RetryState& state, const Status& status,
                                                    double random);

// Counts the attempts of one call and the time that is left for it.
class Attempts {
 public:
  explicit Attempts(CallOptions policy);

  const Metadata& metadata() const { return policy_.metadata; }
  // Of the next attempt. Refers to the metadata of this object.
  RpcOptions Next() const { return {Left(), &policy_.metadata}; }
  // Called after a failed attempt. The delay before the next; nullopt: it was the last attempt.
  // `idempotent`: whether that attempt may be repeated; true for one that was never sent.
  std::optional<std::chrono::microseconds> DelayAfter(const Status& status, bool idempotent,
                                                      double random);
  // The status of a call that ends with `last`: it may have executed if any attempt may have.
  Status EndWith(const Status& last) const;

 private:
  std::chrono::microseconds Left() const;

  const CallOptions policy_;
  const std::chrono::microseconds timeout_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  int made_ = 0;
  bool may_have_executed_ = false;  // any attempt
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CALLS_RETRY_H_
