#include "server/grpc/memory_watch.h"

#include <gtest/gtest.h>

#include <vector>

#include "server/limits.h"
#include "tests/support/fake_clock.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::FakeClock;

constexpr int64_t kReceiveBytes = 100 * limits::kMiB;
constexpr char kOne[] = "uid:1";
constexpr char kTwo[] = "uid:2";

// A message that is being read; records how the read ended.
class FakeRead final : public MessageReads::Entry {
 public:
  FakeRead(MessageReads& reads, absl::string_view owner, bool is_open_stream = false)
      : reads_(reads) {
    reads_.Enter(*this, owner, is_open_stream);
  }
  ~FakeRead() override { reads_.Leave(*this); }

  std::vector<absl::Status> ends;
  int cancels = 0;

 private:
  void EndRead(const absl::Status& status) override { ends.push_back(status); }
  void CancelRead() override { ++cancels; }

  MessageReads& reads_;
};

class MemoryWatchTest : public ::testing::Test {
 protected:
  FakeClock clock_;
  MessageReads reads_{clock_};
  BufferPool pool_{int64_t{1} << 40};
  int64_t anonymous_bytes_ = 0;
  int64_t accounted_bytes_ = 0;
  int64_t free_bytes_ = 0;
  int trims_ = 0;
  MemoryWatch watch_{{kReceiveBytes, absl::Seconds(60)},
                     {[this] { return anonymous_bytes_; }, [this] { return accounted_bytes_; },
                      [this] { return free_bytes_; }, [this] { ++trims_; }},
                     reads_,
                     pool_,
                     clock_};
};

TEST_F(MemoryWatchTest, ReadThatIsNotThereInTimeEndsOnce) {
  FakeRead read(reads_, kOne);
  clock_.Advance(absl::Seconds(60));
  watch_.Look();
  EXPECT_THAT(read.ends, IsEmpty());
  clock_.Advance(absl::Milliseconds(1));
  watch_.Look();
  watch_.Look();
  ASSERT_THAT(read.ends, SizeIs(1));
  EXPECT_THAT(read.ends[0], Fails(absl::StatusCode::kDeadlineExceeded, "--receive_timeout"));
  EXPECT_EQ(watch_.late_calls(), 1);
}

TEST_F(MemoryWatchTest, SilentStreamHasNoTimeToKeep) {
  FakeRead stream(reads_, kOne, /*is_open_stream=*/true);
  clock_.Advance(absl::Hours(1));
  watch_.Look();
  EXPECT_THAT(stream.ends, IsEmpty());
}

TEST_F(MemoryWatchTest, ClientThatDoesNotTakeTheEndIsCutOff) {
  FakeRead read(reads_, kOne);
  clock_.Advance(absl::Seconds(61));
  watch_.Look();
  clock_.Advance(absl::Seconds(1));
  watch_.Look();
  EXPECT_EQ(read.cancels, 0);
  clock_.Advance(absl::Milliseconds(1));
  watch_.Look();
  EXPECT_EQ(read.cancels, 1);
}

TEST_F(MemoryWatchTest, WhatTheProcessHoldsAtTheStartEndsNothing) {
  const FakeRead read(reads_, kOne);
  clock_.Advance(absl::Milliseconds(11));
  MemoryWatch watch({kReceiveBytes, absl::Seconds(60)},
                    {[] { return 2 * kReceiveBytes; }, [] { return int64_t{0}; },
                     [] { return int64_t{0}; }, [] {}},
                    reads_, pool_, clock_);
  watch.Start();
  watch.Look();
  EXPECT_THAT(read.ends, IsEmpty());
}

TEST_F(MemoryWatchTest, TheOldestOfTheGreediestOwnerEndFirstAndNoMoreThanNeedBe) {
  const FakeRead first(reads_, kTwo);
  clock_.Advance(absl::Milliseconds(50));
  const FakeRead one[] = {{reads_, kOne}, {reads_, kOne}};
  const FakeRead second(reads_, kTwo);
  const FakeRead third(reads_, kTwo);
  clock_.Advance(absl::Milliseconds(11));
  anonymous_bytes_ = kReceiveBytes + 1;
  watch_.Look();
  ASSERT_THAT(first.ends, SizeIs(1));
  EXPECT_THAT(first.ends[0], IsExhausted("memory"));
  EXPECT_THAT(second.ends, SizeIs(1));
  EXPECT_THAT(third.ends, IsEmpty());
  for (const FakeRead& read : one) EXPECT_THAT(read.ends, IsEmpty());
  EXPECT_EQ(watch_.ended_calls(), 2);
}

// Its calls are never old, and another owner's are.
TEST_F(MemoryWatchTest, OwnerThatBeginsAgainAtOnceStaysTheGreediest) {
  {
    const FakeRead reads[] = {{reads_, kTwo}, {reads_, kTwo}, {reads_, kTwo}, {reads_, kTwo}};
    clock_.Advance(absl::Milliseconds(26));
    anonymous_bytes_ = kReceiveBytes + 1;
    watch_.Look();
    EXPECT_EQ(watch_.ended_calls(), 2);
  }
  const FakeRead honest(reads_, kOne);
  clock_.Advance(absl::Milliseconds(26));
  const FakeRead again(reads_, kTwo);
  watch_.Look();
  EXPECT_THAT(honest.ends, IsEmpty());
  anonymous_bytes_ = kReceiveBytes * 3 / 2 + 1;
  watch_.Look();
  EXPECT_THAT(honest.ends, SizeIs(1)) << "the memory is needed";
}

TEST_F(MemoryWatchTest, OwnerIsTheGreediestForASecond) {
  {
    const FakeRead read(reads_, kTwo);
    clock_.Advance(absl::Milliseconds(26));
    anonymous_bytes_ = kReceiveBytes + 1;
    watch_.Look();
  }
  const FakeRead other(reads_, kOne);
  clock_.Advance(absl::Milliseconds(1001));
  watch_.Look();
  EXPECT_THAT(other.ends, SizeIs(1));
}

TEST_F(MemoryWatchTest, FreedMemoryEndsNoRead) {
  const FakeRead read(reads_, kOne);
  clock_.Advance(absl::Milliseconds(26));
  anonymous_bytes_ = kReceiveBytes;
  watch_.Look();
  EXPECT_EQ(trims_, 1);
  clock_.Advance(absl::Milliseconds(5));
  anonymous_bytes_ = kReceiveBytes + 1;
  watch_.Look();
  EXPECT_THAT(read.ends, IsEmpty()) << "the rest may be freed memory";
  clock_.Advance(absl::Milliseconds(20));
  watch_.Look();
  EXPECT_EQ(trims_, 2);
  EXPECT_THAT(read.ends, SizeIs(1));
}

TEST_F(MemoryWatchTest, StreamsEndFarAboveTheBudgetIfNoOtherMessageIsUnderWay) {
  const FakeRead stream(reads_, kOne, /*is_open_stream=*/true);
  clock_.Advance(absl::Milliseconds(26));
  anonymous_bytes_ = kReceiveBytes * 3 / 2;
  watch_.Look();
  EXPECT_THAT(stream.ends, IsEmpty()) << "it may be idle";
  ++anonymous_bytes_;
  {
    const FakeRead read(reads_, kTwo);
    clock_.Advance(absl::Milliseconds(11));
    watch_.Look();
    EXPECT_THAT(read.ends, SizeIs(1));
    EXPECT_THAT(stream.ends, IsEmpty());
  }
  watch_.Look();
  EXPECT_THAT(stream.ends, SizeIs(1));
}

TEST_F(MemoryWatchTest, WhatBudgetsHaveCountedEndsNothing) {
  const FakeRead read(reads_, kOne);
  clock_.Advance(absl::Seconds(1));
  accounted_bytes_ = kReceiveBytes;
  anonymous_bytes_ = 2 * kReceiveBytes;
  watch_.Look();
  EXPECT_THAT(read.ends, IsEmpty());
}

TEST_F(MemoryWatchTest, MessageThatHasJustBegunStays) {
  const FakeRead read(reads_, kOne);
  clock_.Advance(absl::Milliseconds(9));
  anonymous_bytes_ = 10 * kReceiveBytes;
  watch_.Look();
  EXPECT_THAT(read.ends, IsEmpty());
}

TEST_F(MemoryWatchTest, FreedMemoryThatLiesUnusedForSecondsGoesBack) {
  free_bytes_ = 100 * limits::kMiB;
  for (int second = 0; second < 4; ++second) {
    watch_.Look();
    clock_.Advance(absl::Seconds(1));
    EXPECT_EQ(trims_, 0);
  }
  watch_.Look();
  EXPECT_EQ(trims_, 1);
}

TEST_F(MemoryWatchTest, FreedMemoryThatIsUsedAgainStays) {
  for (int second = 0; second < 20; ++second) {
    free_bytes_ = second % 3 == 0 ? 0 : 100 * limits::kMiB;
    watch_.Look();
    clock_.Advance(absl::Seconds(1));
  }
  EXPECT_EQ(trims_, 0);
}

TEST_F(MemoryWatchTest, BuffersThatLieUnusedGoBackButForAFloor) {
  { const PooledBuffer burst = pool_.Allocate(64 * limits::kMiB); }
  { const PooledBuffer small = pool_.Allocate(8 * limits::kMiB); }
  watch_.Look();
  clock_.Advance(absl::Milliseconds(MemoryWatch::kUnusedMs));
  watch_.Look();
  EXPECT_EQ(pool_.kept_bytes(), 8 * limits::kMiB);
}

TEST_F(MemoryWatchTest, RestsLongOnlyWhereNoMessageMustCome) {
  const FakeRead stream(reads_, kTwo, /*is_open_stream=*/true);
  EXPECT_GE(watch_.Look(), absl::Seconds(1));
  const FakeRead read(reads_, kOne);
  EXPECT_LE(watch_.Look(), absl::Milliseconds(20));
}

}  // namespace
}  // namespace rope::server
