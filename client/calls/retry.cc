#include "client/calls/retry.h"

#include <algorithm>
#include <utility>

#include "client/transport/waiter.h"

namespace rope::client {
namespace {

using std::chrono::microseconds;

bool IsRetryable(const RetryState& state, const Status& status) {
  const bool delay_given = status.detail().retry_delay_ms > 0;
  if (!state.idempotent && (!delay_given || status.detail().may_have_executed)) return false;
  return status.code() == StatusCode::kUnavailable ||
         (status.code() == StatusCode::kResourceExhausted && delay_given);
}

// Doubles up to the bound, without overflow. The random half keeps clients from retrying at the
// same time.
microseconds Backoff(const CallOptions& policy, int attempts, double random) {
  const microseconds max = BoundedTimeout(policy.backoff_max);
  microseconds backoff = BoundedTimeout(policy.backoff_initial);
  for (int i = 1; i < attempts && backoff < max; ++i) backoff *= 2;
  backoff = std::min(backoff, max);
  return microseconds(
      static_cast<int64_t>(static_cast<double>(backoff.count()) * (1 + random) / 2));
}

}  // namespace

std::optional<microseconds> RetryDelay(const CallOptions& policy, const RetryState& state,
                                       const Status& status, double random) {
  if (state.attempts >= policy.attempts_max || !IsRetryable(state, status)) return std::nullopt;
  // Compared in milliseconds first: a delay received from the server may have any value.
  if (status.detail().retry_delay_ms >= state.left.count() / 1000 + 1) return std::nullopt;
  const microseconds delay = Backoff(policy, state.attempts, random) +
                             std::chrono::milliseconds(status.detail().retry_delay_ms);
  if (delay >= state.left) return std::nullopt;
  return delay;
}

Attempts::Attempts(CallOptions policy)
    : policy_(std::move(policy)), timeout_(BoundedTimeout(policy_.timeout)) {}

microseconds Attempts::Left() const {
  const auto elapsed = std::chrono::steady_clock::now() - begin_;
  return timeout_ - std::chrono::duration_cast<microseconds>(elapsed);
}

std::optional<microseconds> Attempts::DelayAfter(const Status& status, bool idempotent,
                                                 double random) {
  may_have_executed_ |= status.detail().may_have_executed;
  const RetryState state{.attempts = ++made_, .idempotent = idempotent, .left = Left()};
  return RetryDelay(policy_, state, status, random);
}

Status Attempts::EndWith(const Status& last) const {
  if (last.ok() || !may_have_executed_) return last;
  ErrorDetail detail = last.detail();
  detail.may_have_executed = true;
  return Status(last.code(), last.message(), std::move(detail));
}

}  // namespace rope::client
