#include "server/telemetry/log_limiter.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "server/limits.h"
#include "server/telemetry/log_drops.h"
#include "tests/support/fake_clock.h"

namespace rope::server {
namespace {

class LogLimiterTest : public ::testing::Test {
 protected:
  static constexpr size_t kKinds = 3;

  // The number of `lines` that are admitted at this instant.
  int64_t Admitted(int64_t lines, size_t kind = 0) {
    int64_t admitted = 0;
    for (int64_t i = 0; i < lines; ++i) admitted += limiter_.Admit(kind).has_value() ? 1 : 0;
    return admitted;
  }

  const absl::Duration token_ = absl::Seconds(1) / limits::kLogLinesPerSecond;
  testing::FakeClock clock_;
  LogLimiter limiter_{clock_, kKinds};
};

TEST_F(LogLimiterTest, BurstIsAdmittedAndTheRestIsNot) {
  EXPECT_EQ(Admitted(1000), limits::kLogBurstLines);
}

TEST_F(LogLimiterTest, LineThatPassesAfterOthersSaysHowManyWereLeftOut) {
  EXPECT_EQ(limiter_.Admit(0), 0);
  EXPECT_EQ(Admitted(limits::kLogBurstLines - 1 + 7), limits::kLogBurstLines - 1);
  clock_.Advance(2 * token_);
  EXPECT_EQ(limiter_.Admit(0), 7);
  EXPECT_EQ(limiter_.Admit(0), 0) << "dropped lines are reported once";
}

TEST_F(LogLimiterTest, FloodOfTenSecondsHasTheLinesOfTenSecondsAndABurst) {
  int64_t admitted = 0;
  for (int i = 0; i < 10'000; ++i) {
    admitted += Admitted(3);
    clock_.Advance(absl::Milliseconds(1));
  }
  EXPECT_EQ(admitted, limits::kLogBurstLines + 10 * limits::kLogLinesPerSecond - 1);
}

TEST_F(LogLimiterTest, BucketIsFullAgainAfterAQuietTimeAndHoldsNoMore) {
  Admitted(1000);
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(Admitted(1000), limits::kLogBurstLines);
}

TEST_F(LogLimiterTest, KindsHaveBucketsOfTheirOwn) {
  Admitted(1000, 0);
  EXPECT_EQ(Admitted(1000, 1), limits::kLogBurstLines);
  EXPECT_EQ(Admitted(1000, kKinds - 1), limits::kLogBurstLines);
}

TEST_F(LogLimiterTest, EveryLineOfManyThreadsIsAdmittedOrCountedAsLeftOut) {
  constexpr int kThreads = 4;
  constexpr int kEach = 10'000;
  const int64_t dropped_before = LogDrops()[static_cast<size_t>(LogDrop::kRateLimit)];
  std::atomic<int64_t> admitted = 0;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] { admitted += Admitted(kEach); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(admitted.load(), limits::kLogBurstLines);
  constexpr int64_t kLeftOut = kThreads * kEach - limits::kLogBurstLines;
  EXPECT_EQ(LogDrops()[static_cast<size_t>(LogDrop::kRateLimit)] - dropped_before, kLeftOut);
  clock_.Advance(token_);
  EXPECT_EQ(limiter_.Admit(0), kLeftOut);
}

}  // namespace
}  // namespace rope::server
