#include "server/grpc/memory_watch.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "server/limits.h"
#include "tests/support/fake_clock.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::FakeClock;

constexpr int64_t kReceiveBytes = 100 * limits::kMiB;
constexpr int64_t kMessageBytes = 40 * limits::kMiB;

// A message that is being read; records how the read ended.
class FakeRead final : public Transfers::Transfer {
 public:
  FakeRead(Transfers& receiving, uint64_t session, bool may_idle = false)
      : Transfers::Transfer(may_idle), receiving_(receiving) {
    receiving_.Enter(*this, session);
  }
  ~FakeRead() override { receiving_.Leave(*this); }

  std::vector<absl::Status> ends;
  int aborts = 0;
  int retained = 0;

 private:
  void EndTransfer(const absl::Status& status) override { ends.push_back(status); }
  void AbortTransfer() override { ++aborts; }
  void Retain() override { ++retained; }
  void Release() override { --retained; }

  Transfers& receiving_;
};

class MemoryWatchTest : public ::testing::Test {
 protected:
  FakeClock clock_;
  Transfers receiving_{clock_};
  Transfers untaken_{clock_};
  BufferPool pool_{int64_t{1} << 40};
  int64_t anonymous_bytes_ = 0;
  int64_t accounted_bytes_ = 0;
  int64_t free_bytes_ = 0;
  int64_t refused_ = 0;
  int trims_ = 0;
  MemoryWatch watch_{
      {kReceiveBytes, kMessageBytes, absl::Seconds(60)},
      {[this] { return anonymous_bytes_; }, [this] { return accounted_bytes_; },
       [this] { return free_bytes_; }, [this] { ++trims_; }, [this] { return refused_; }},
      receiving_,
      untaken_,
      pool_,
      clock_};
};

TEST_F(MemoryWatchTest, ReadThatIsNotThereInTimeEndsOnce) {
  FakeRead read(receiving_, 1);
  clock_.Advance(absl::Seconds(60));
  watch_.Tick();
  EXPECT_THAT(read.ends, IsEmpty());
  clock_.Advance(absl::Milliseconds(1));
  watch_.Tick();
  watch_.Tick();
  ASSERT_THAT(read.ends, SizeIs(1));
  EXPECT_THAT(read.ends[0], Fails(absl::StatusCode::kDeadlineExceeded, "--receive_timeout"));
  EXPECT_EQ(read.retained, 0);
  EXPECT_EQ(watch_.refusals().late, 1);
}

TEST_F(MemoryWatchTest, SilentStreamHasNoTimeToKeep) {
  FakeRead stream(receiving_, 1, /*may_idle=*/true);
  clock_.Advance(absl::Hours(1));
  watch_.Tick();
  EXPECT_THAT(stream.ends, IsEmpty());
}

TEST_F(MemoryWatchTest, ClientThatDoesNotTakeTheEndIsCutOff) {
  FakeRead read(receiving_, 1);
  clock_.Advance(absl::Seconds(61));
  watch_.Tick();
  clock_.Advance(absl::Seconds(1));
  watch_.Tick();
  EXPECT_EQ(read.aborts, 0);
  clock_.Advance(absl::Milliseconds(1));
  watch_.Tick();
  EXPECT_EQ(read.aborts, 1);
}

TEST_F(MemoryWatchTest, WhatTheProcessHoldsAtTheStartEndsNoRead) {
  FakeRead read(receiving_, 1);
  clock_.Advance(absl::Milliseconds(11));
  {
    MemoryWatch watch({kReceiveBytes, kMessageBytes, absl::Seconds(60)},
                      {[] { return 2 * kReceiveBytes; }, [] { return int64_t{0}; },
                       [] { return int64_t{0}; }, [] {}, [] { return int64_t{0}; }},
                      receiving_, untaken_, pool_, clock_);
    watch.Start();  // one round at least
  }
  EXPECT_THAT(read.ends, IsEmpty());
}

TEST_F(MemoryWatchTest, GreediestSessionEndsFirstAndNoMoreThanNeedBe) {
  FakeRead one(receiving_, 1);
  FakeRead two(receiving_, 2);
  FakeRead two_more(receiving_, 2);
  FakeRead young_stream(receiving_, 3, /*may_idle=*/true);
  clock_.Advance(absl::Milliseconds(11));
  anonymous_bytes_ = kReceiveBytes + 1;
  watch_.Tick();
  EXPECT_THAT(one.ends, IsEmpty());
  EXPECT_THAT(young_stream.ends, IsEmpty());
  ASSERT_THAT(two.ends, SizeIs(1));
  EXPECT_THAT(two_more.ends, SizeIs(1));
  EXPECT_THAT(two.ends[0], IsExhausted("memory"));
  EXPECT_EQ(watch_.refusals().pressure, 2);
}

TEST_F(MemoryWatchTest, RepliesThatAreNotTakenAreCancelledWhileReadsAreEnded) {
  FakeRead reply(untaken_, 1);
  clock_.Advance(absl::Milliseconds(MemoryWatch::kUntakenMs + 1));
  anonymous_bytes_ = kReceiveBytes;
  watch_.Tick();
  EXPECT_THAT(reply.ends, IsEmpty());
  anonymous_bytes_ = kReceiveBytes + 1;
  watch_.Tick();
  EXPECT_THAT(reply.ends, SizeIs(1));
}

TEST_F(MemoryWatchTest, RepliesThatAreNotTakenAreCancelledWhileOthersAreRefused) {
  FakeRead one(untaken_, 1);
  FakeRead two(untaken_, 2);
  FakeRead two_more(untaken_, 2);
  clock_.Advance(absl::Milliseconds(MemoryWatch::kUntakenMs + 1));
  const FakeRead young(untaken_, 3);
  watch_.Tick();
  EXPECT_THAT(two.ends, IsEmpty()) << "nobody needs the memory";
  ++refused_;
  watch_.Tick();
  EXPECT_THAT(one.ends, IsEmpty());
  EXPECT_THAT(two.ends, SizeIs(1));
  EXPECT_THAT(two_more.ends, SizeIs(1));
  watch_.Tick();
  EXPECT_THAT(one.ends, IsEmpty()) << "nobody was refused since";
  refused_ += 7;
  watch_.Tick();
  EXPECT_THAT(one.ends, SizeIs(1));
  EXPECT_THAT(young.ends, IsEmpty());
  EXPECT_EQ(watch_.refusals().untaken, 3);
}

TEST_F(MemoryWatchTest, WhatBudgetsHaveCountedEndsNothing) {
  FakeRead read(receiving_, 1);
  clock_.Advance(absl::Seconds(1));
  accounted_bytes_ = kReceiveBytes;
  anonymous_bytes_ = 2 * kReceiveBytes;
  watch_.Tick();
  EXPECT_THAT(read.ends, IsEmpty());
}

TEST_F(MemoryWatchTest, LateMessagesCountAsTheLargestOnceHalfOfTheirBudgetIsInUse) {
  std::vector<std::unique_ptr<FakeRead>> reads;
  for (uint64_t session = 0; session < 3; ++session) {
    reads.push_back(std::make_unique<FakeRead>(receiving_, session));
  }
  clock_.Advance(absl::Milliseconds(11));
  anonymous_bytes_ = kReceiveBytes / 2;
  watch_.Tick();
  EXPECT_EQ(watch_.receiving_bytes(), 3 * kMessageBytes);
  EXPECT_EQ(watch_.refusals().pressure, 0);
  anonymous_bytes_ = kReceiveBytes / 2 + limits::kMiB;
  watch_.Tick();
  EXPECT_EQ(watch_.refusals().pressure, 1);
}

TEST_F(MemoryWatchTest, MessageThatHasJustBegunIsNotEnded) {
  FakeRead read(receiving_, 1);
  clock_.Advance(absl::Milliseconds(9));
  anonymous_bytes_ = 10 * kReceiveBytes;
  watch_.Tick();
  EXPECT_THAT(read.ends, IsEmpty());
}

TEST_F(MemoryWatchTest, FreedMemoryThatLiesUnusedForSecondsGoesBack) {
  free_bytes_ = 100 * limits::kMiB;
  for (int second = 0; second < 4; ++second) {
    watch_.Tick();
    clock_.Advance(absl::Seconds(1));
    EXPECT_EQ(trims_, 0);
  }
  watch_.Tick();
  EXPECT_EQ(trims_, 1);
}

TEST_F(MemoryWatchTest, FreedMemoryThatIsUsedAgainStays) {
  for (int second = 0; second < 20; ++second) {
    free_bytes_ = second % 3 == 0 ? 0 : 100 * limits::kMiB;
    watch_.Tick();
    clock_.Advance(absl::Seconds(1));
  }
  EXPECT_EQ(trims_, 0);
}

TEST_F(MemoryWatchTest, BuffersThatLieUnusedGoBackButForAFloor) {
  { const PooledBuffer burst = pool_.Allocate(64 * limits::kMiB); }
  { const PooledBuffer small = pool_.Allocate(8 * limits::kMiB); }
  watch_.Tick();
  clock_.Advance(absl::Milliseconds(MemoryWatch::kUnusedMs));
  watch_.Tick();
  EXPECT_EQ(pool_.kept_bytes(), 8 * limits::kMiB);
}

TEST_F(MemoryWatchTest, RestsLongOnlyWhereNothingIsRead) {
  EXPECT_GE(watch_.Tick(), absl::Seconds(1));
  const FakeRead read(receiving_, 1);
  EXPECT_LE(watch_.Tick(), absl::Milliseconds(20));
}

}  // namespace
}  // namespace rope::server
