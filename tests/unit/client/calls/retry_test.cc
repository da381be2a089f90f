#include "client/calls/retry.h"

#include <gtest/gtest.h>

namespace rope::client {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

const CallOptions kPolicy{
    .attempts_max = 4, .backoff_initial = milliseconds(100), .backoff_max = milliseconds(300)};

Status Unavailable() {
  return Status(StatusCode::kUnavailable, "draining");
}

Status Full(int64_t delay_ms, bool executed = false) {
  return Status(StatusCode::kResourceExhausted, "queue full",
                ErrorDetail{.field = "",
                            .got = "",
                            .want = "",
                            .retry_delay_ms = delay_ms,
                            .may_have_executed = executed});
}

RetryState After(int attempts) {
  return {
      .attempts = attempts, .idempotent = true, .elapsed = microseconds(0), .timeout = seconds(30)};
}

TEST(RetryTest, UnavailableBacksOffDoublingToTheBound) {
  EXPECT_EQ(RetryDelay(kPolicy, After(1), Unavailable(), 0), milliseconds(50));
  EXPECT_EQ(RetryDelay(kPolicy, After(2), Unavailable(), 0), milliseconds(100));
  EXPECT_EQ(RetryDelay(kPolicy, After(3), Unavailable(), 0), milliseconds(150));
}

TEST(RetryTest, RandomStretchesTheBackoff) {
  EXPECT_EQ(RetryDelay(kPolicy, After(1), Unavailable(), 0.5), milliseconds(75));
}

TEST(RetryTest, LastAttemptStops) {
  EXPECT_TRUE(RetryDelay(kPolicy, After(3), Unavailable(), 0).has_value());
  EXPECT_EQ(RetryDelay(kPolicy, After(4), Unavailable(), 0), std::nullopt);
}

TEST(RetryTest, FullQueueWaitsAtLeastTheServersDelay) {
  EXPECT_EQ(RetryDelay(kPolicy, After(1), Full(700), 0), milliseconds(750));
}

TEST(RetryTest, TooLargeForEverStops) {
  EXPECT_EQ(RetryDelay(kPolicy, After(1), Full(0), 0), std::nullopt);
}

TEST(RetryTest, OtherCodesStop) {
  for (const StatusCode code :
       {StatusCode::kInvalidArgument, StatusCode::kNotFound, StatusCode::kInternal,
        StatusCode::kDeadlineExceeded, StatusCode::kCancelled, StatusCode::kUnimplemented}) {
    EXPECT_EQ(RetryDelay(kPolicy, After(1), Status(code, ""), 0), std::nullopt) << Name(code);
  }
}

TEST(RetryTest, DelayThatReachesTheDeadlineStops) {
  RetryState state = After(1);
  state.elapsed = seconds(30) - milliseconds(50);
  EXPECT_EQ(RetryDelay(kPolicy, state, Unavailable(), 0), std::nullopt);
  state.elapsed -= microseconds(1);
  EXPECT_EQ(RetryDelay(kPolicy, state, Unavailable(), 0), milliseconds(50));
}

TEST(RetryTest, HugeDelayFromTheWireStopsWithoutOverflow) {
  EXPECT_EQ(RetryDelay(kPolicy, After(1), Full(INT64_MAX), 0), std::nullopt);
}

TEST(RetryTest, PastTheDeadlineStops) {
  RetryState state = After(1);
  state.elapsed = seconds(31);
  EXPECT_EQ(RetryDelay(kPolicy, state, Full(1), 0), std::nullopt);
}

TEST(RetryTest, NotIdempotentIsRetriedOnlyWhereNothingRan) {
  RetryState state = After(1);
  state.idempotent = false;
  EXPECT_EQ(RetryDelay(kPolicy, state, Unavailable(), 0), std::nullopt);
  EXPECT_EQ(RetryDelay(kPolicy, state, Full(10, /*executed=*/true), 0), std::nullopt);
  EXPECT_TRUE(RetryDelay(kPolicy, state, Full(10), 0).has_value());
}

TEST(RetryTest, DelaysThatNoClockHasAreClamped) {
  const CallOptions huge = {.backoff_initial = milliseconds::max(),
                            .backoff_max = milliseconds::max()};
  EXPECT_EQ(RetryDelay(huge, After(1), Unavailable(), 0), std::nullopt) << "past the deadline";
  const CallOptions negative = {.backoff_initial = milliseconds(-5),
                                .backoff_max = milliseconds(-9)};
  EXPECT_EQ(RetryDelay(negative, After(1), Unavailable(), 0), milliseconds(0));
}

TEST(AttemptsTest, CountUpToTheirNumber) {
  Attempts attempts({.timeout = seconds(1000), .attempts_max = 3});
  EXPECT_EQ(attempts.DelayAfter(Unavailable(), true, 0), milliseconds(50));
  EXPECT_EQ(attempts.DelayAfter(Unavailable(), true, 0), milliseconds(100));
  EXPECT_EQ(attempts.DelayAfter(Unavailable(), true, 0), std::nullopt);
}

TEST(AttemptsTest, NotIdempotentEndAtOnce) {
  Attempts attempts({.timeout = seconds(1000)});
  EXPECT_EQ(attempts.DelayAfter(Unavailable(), false, 0), std::nullopt);
}

TEST(AttemptsTest, CallMayHaveExecutedIfAnyAttemptMay) {
  Attempts attempts({.timeout = seconds(1000)});
  EXPECT_TRUE(attempts.DelayAfter(Full(1), true, 0).has_value());
  EXPECT_FALSE(attempts.EndWith(Full(1)).detail().may_have_executed);
  EXPECT_TRUE(attempts.DelayAfter(Full(1, /*executed=*/true), true, 0).has_value());
  EXPECT_TRUE(attempts.EndWith(Full(1)).detail().may_have_executed);
  EXPECT_EQ(attempts.EndWith(Full(1)).ToString(), Full(1).ToString());
}

TEST(AttemptsTest, TimeThatIsLeftShrinksAndHugeTimeoutsAreADay) {
  const Attempts attempts({.timeout = milliseconds::max()});
  EXPECT_LE(attempts.Next().timeout, std::chrono::hours(24));
  EXPECT_GT(attempts.Next().timeout, std::chrono::hours(23));
}

}  // namespace
}  // namespace rope::client
