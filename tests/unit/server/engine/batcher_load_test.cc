// Batches under load. The device is held until all requests are queued; then its batches are
// checked.
#include <gtest/gtest.h>

#include <thread>

#include "server/limits.h"
#include "tests/support/held_batcher.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::HeldBatcher;
using ::rope::testing::kHeldOptions;
using ::rope::testing::kQueued;
using ::testing::UnorderedElementsAre;

using BatcherReportTest = HeldBatcher;
using BatcherLoadTest = HeldBatcher;

std::vector<ClosedBy> Reasons(const std::vector<BatchReport>& reports) {
  std::vector<ClosedBy> reasons;
  for (const BatchReport& report : reports) reasons.push_back(report.closed_by);
  return reasons;
}

TEST_F(BatcherReportTest, RequestOnItsCallersThreadIsReportedAsDirect) {
  Start();
  Allow(1);
  auto request = MakeRequest("small", 25);
  request->plan.bytes_per_token = 4;
  Enqueue(std::move(request));
  ASSERT_THAT(Reasons(Reports()), ElementsAre(ClosedBy::kDirect));
  EXPECT_EQ(Reports()[0].requests, 1);
  EXPECT_EQ(Reports()[0].tokens, 25);
  EXPECT_EQ(Reports()[0].bytes, 100);
  EXPECT_THAT(DeviceRouter(), ElementsAre("held"));
}

TEST_F(BatcherReportTest, BatchOfAllThereIsIsReportedAsDrainedWithItsContents) {
  Start();
  Block();
  for (const char* id : {"a", "b"}) Enqueue(id, 5);
  auto wide = MakeRequest("wide", 3);
  wide->plan.bytes_per_token = 40;
  Enqueue(std::move(wide));
  Allow(2);
  AwaitAnswers(4);
  ASSERT_THAT(Reasons(Reports()), ElementsAre(ClosedBy::kDrained, ClosedBy::kDrained));
  EXPECT_EQ(Reports()[1].requests, 3);
  EXPECT_EQ(Reports()[1].tokens, 13);
  EXPECT_EQ(Reports()[1].bytes, 130);
  EXPECT_THAT(DeviceRouter(), Each("held"));
}

TEST_F(BatcherReportTest, TimesAreThoseOfTheRun) {
  Start();
  const absl::Time start = clock_.Now();
  Block();
  clock_.Advance(absl::Microseconds(70));
  Allow(1);
  AwaitAnswers(1);
  ASSERT_THAT(Reports(), SizeIs(1));
  EXPECT_EQ(Reports()[0].started, start);
  EXPECT_EQ(Reports()[0].finished, start + absl::Microseconds(70));
}

TEST_F(BatcherReportTest, CapInBytesIsTheReason) {
  Start();
  Block();
  for (const char* id : {"a", "b", "c"}) Enqueue(id, 400);
  Allow(3);
  AwaitAnswers(4);
  EXPECT_THAT(Reasons(Reports()),
              ElementsAre(ClosedBy::kDrained, ClosedBy::kBytes, ClosedBy::kDrained));
  EXPECT_EQ(Reports()[1].bytes, 1000);
}

TEST_F(BatcherReportTest, CapInTokensIsTheReason) {
  StartWith([](auto& options) { options.tokens_max = 150; });
  Block();
  for (const char* id : {"a", "b"}) Enqueue(id, 100);
  Allow(3);
  AwaitAnswers(3);
  EXPECT_THAT(Reasons(Reports()),
              ElementsAre(ClosedBy::kDrained, ClosedBy::kTokens, ClosedBy::kDrained));
  EXPECT_EQ(Reports()[1].tokens, 150);
}

TEST_F(BatcherReportTest, CapInRequestsIsTheReason) {
  Start();
  Block();
  for (int i = 0; i < 11; ++i) Enqueue(absl::StrCat(i), 5);
  Allow(3);
  AwaitAnswers(12);
  EXPECT_THAT(Reasons(Reports()),
              ElementsAre(ClosedBy::kDrained, ClosedBy::kRequests, ClosedBy::kDrained));
  EXPECT_EQ(Reports()[1].requests, 10);
}

TEST_F(BatcherReportTest, SlicesThatTheDeviceEndsCountAsTheyRan) {
  ends_ = {{"a 0-5", 3}, {"b 0-5", 0}, {"c 0-5", 0}};
  Start();
  Block();
  for (const char* id : {"a", "b", "c"}) Enqueue(id, 5);
  Allow(3);
  AwaitAnswers(4);
  EXPECT_THAT(BatchAt(1), ElementsAre("a 0-5", "b 0-5", "c 0-5"));
  EXPECT_THAT(BatchAt(2), ElementsAre("b 0-5", "c 0-5", "a 3-5")) << "those left out come first";
  ASSERT_THAT(Reasons(Reports()),
              ElementsAre(ClosedBy::kDrained, ClosedBy::kRows, ClosedBy::kDrained));
  EXPECT_EQ(Reports()[1].requests, 1);
  EXPECT_EQ(Reports()[1].tokens, 3);
  EXPECT_EQ(Reports()[1].bytes, 3);
  EXPECT_EQ(Reports()[2].tokens, 12);
}

TEST_F(BatcherLoadTest, GatheredRequestsThatWereLeftOutRunNext) {
  ends_ = {{"a 0-5", 3}, {"b 0-5", 0}};
  Start();
  Allow(3);
  for (const char* id : {"a", "b"}) EnqueueGathering(MakeRequest(id, 5));
  EXPECT_TRUE(batcher_->RunGathered());
  EXPECT_THAT(AnsweredIds(), SizeIs(0));
  EXPECT_TRUE(batcher_->RunGathered());
  EXPECT_THAT(BatchAt(1), ElementsAre("b 0-5", "a 3-5"));
  EXPECT_THAT(AnsweredIds(), ElementsAre("b", "a"));
}

TEST_F(BatcherReportTest, CapInJobsIsTheReason) {
  StartWith([](auto& options) { options.jobs_max = 100; });
  Block();
  auto request = MakeRequest("a", 30);
  request->plan.jobs = {.fixed = 20, .per_token = 8};
  Enqueue(std::move(request));
  Allow(100);
  AwaitAnswers(2);
  EXPECT_THAT(BatchAt(1), ElementsAre("a 0-10"));
  EXPECT_THAT(BatchAt(2), ElementsAre("a 10-20"));
  EXPECT_THAT(BatchAt(3), ElementsAre("a 20-30"));
  EXPECT_EQ(Reports()[1].closed_by, ClosedBy::kJobs);
}

TEST_F(BatcherLoadTest, TokenOfMoreJobsThanABatchStillRuns) {
  StartWith([](auto& options) { options.jobs_max = 100; });
  Allow(100);
  auto request = MakeRequest("a", 2);
  request->plan.jobs = {.fixed = 400, .per_token = 200};
  Enqueue(std::move(request));
  EXPECT_THAT(BatchAt(0), ElementsAre("a 0-1"));
  EXPECT_THAT(BatchAt(1), ElementsAre("a 1-2"));
}

TEST_F(BatcherReportTest, RestOfALargeRequestDoesNotKeepABatchOpen) {
  Start();
  Block();
  Enqueue("large", 500);
  Allow(3);
  AwaitAnswers(2);
  EXPECT_THAT(Reasons(Reports()), Each(ClosedBy::kDrained));
  EXPECT_EQ(Reports()[1].tokens, 400);
  EXPECT_EQ(Reports()[2].tokens, 100);
}

TEST_F(BatcherReportTest, NothingIsReportedWhereNothingRan) {
  Start();
  Block();
  auto expired = MakeRequest("expired", 5);
  expired->arrival.deadline = clock_.Now();
  Enqueue(std::move(expired));
  Allow(1);
  AwaitAnswers(2);
  EXPECT_THAT(Reports(), SizeIs(1));
}

TEST_F(BatcherReportTest, IsMadeBeforeTheAnswers) {
  Start();
  Allow(1);
  auto request = MakeRequest("small", 5);
  size_t reported = 0;
  request->done = [&](std::unique_ptr<Request>, const absl::Status&) {
    reported = Reports().size();
  };
  Enqueue(std::move(request));
  EXPECT_EQ(reported, 1U);
}

TEST_F(BatcherLoadTest, ASessionWithAThousandRequestsDoesNotHoldUpAnothersOne) {
  Start();
  Block();
  for (int i = 0; i < 1000; ++i) Enqueue(absl::StrCat("many", i), 5, 1);
  Allow(5);
  AwaitBatches(6);  // five are over, the sixth is held
  Enqueue("one", 5, 2);
  Allow(1);
  AwaitBatches(7);
  EXPECT_THAT(BatchAt(6), Contains("one 0-5"));
  EXPECT_THAT(BatchAt(6), SizeIs(10));
  Allow(1 << 20);
  batcher_->Drain();
  EXPECT_THAT(AnsweredIds(), SizeIs(1002));
}

TEST_F(BatcherLoadTest, SmallRequestsPassBetweenTheSlicesOf64MiB) {
  Batcher::Options options;  // as shipped
  options.direct_slots = 0;
  Start(options);
  Block();
  auto large = MakeRequest("large", 64);
  large->plan.bytes_per_token = limits::kMiB;
  Enqueue(std::move(large));
  for (int i = 0; i < 7; ++i) {
    const std::string id = absl::StrCat("small", i);
    Enqueue(id, 1);
    Allow(1);
    AwaitBatches(static_cast<size_t>(i) + 2);
    EXPECT_THAT(BatchAt(static_cast<size_t>(i) + 1),
                UnorderedElementsAre(absl::StrCat("large ", 8 * i, "-", 8 * i + 8), id + " 0-1"));
  }
  Allow(2);
  AwaitAnswers(9);
  EXPECT_THAT(AnsweredIds(), ElementsAre("blocker", "small0", "small1", "small2", "small3",
                                         "small4", "small5", "small6", "large"));
}

TEST_F(BatcherLoadTest, CancellingHalfOfTheQueueAnswersAllAndRunsTheOtherHalf) {
  Start();
  Block();
  std::vector<std::shared_ptr<std::atomic<bool>>> flags;
  for (int i = 0; i < 64; ++i) {
    auto request = MakeRequest(absl::StrCat(i), 5, static_cast<uint64_t>(i % 5));
    if (i % 2 == 1) flags.push_back(request->arrival.cancelled);
    Enqueue(std::move(request));
  }
  for (const auto& flag : flags) flag->store(true);
  Allow(1 << 20);
  AwaitAnswers(65);
  int64_t run = 0;
  for (const BatchReport& report : Reports()) run += report.requests;
  EXPECT_EQ(run, 1 + 32);
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(AnswerOf(absl::StrCat(i)).status.code(),
              i % 2 == 1 ? absl::StatusCode::kCancelled : absl::StatusCode::kOk);
  }
}

TEST_F(BatcherLoadTest, OneFailingRequestOfAFullBatchFailsAlone) {
  failing_slice_ = "7 0-5";
  Start();
  Block();
  for (int i = 0; i < 10; ++i) Enqueue(absl::StrCat(i), 5);
  Allow(2);
  AwaitAnswers(11);
  for (int i = 0; i < 10; ++i) {
    const absl::Status status = AnswerOf(absl::StrCat(i)).status;
    if (i == 7) {
      EXPECT_THAT(status, IsInternal("broken"));
    } else {
      EXPECT_THAT(status, IsOk()) << i;
    }
  }
}

TEST_F(BatcherLoadTest, DrainAnswersAFullQueue) {
  Start();
  Block();
  for (int i = 0; i < 500; ++i) {
    Enqueue(absl::StrCat(i), i % 10 == 0 ? 900 : 5, static_cast<uint64_t>(i % 7));
  }
  Allow(1 << 20);
  batcher_->Drain();
  EXPECT_THAT(AnsweredIds(), SizeIs(501));
  EXPECT_THAT(AnsweredIds(), Not(Contains("none")));
}

TEST_F(BatcherLoadTest, ManyCallersOfAHeldDeviceLoseNothing) {
  constexpr int kCallers = 8;
  constexpr int kEach = 250;
  Start();
  Block();
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([this, caller] {
      for (int i = 0; i < kEach; ++i) {
        Enqueue(absl::StrCat(caller, "/", i), 1 + i % 50, static_cast<uint64_t>(caller % 3));
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(BatchCount(), 1U);
  Allow(1 << 20);
  batcher_->Drain();
  EXPECT_THAT(AnsweredIds(), SizeIs(kCallers * kEach + 1));
  const std::vector<BatchReport> reports = Reports();
  // No request arrived later, so that every batch except the last reaches its cap in requests.
  EXPECT_THAT(reports, SizeIs(1 + kCallers * kEach / 10));
  int64_t requests = 0;
  int64_t tokens = 0;
  for (const BatchReport& report : reports) {
    EXPECT_LE(report.requests, kHeldOptions.requests_max);
    requests += report.requests;
    tokens += report.tokens;
  }
  EXPECT_EQ(requests, kCallers * kEach + 1);
  EXPECT_EQ(tokens, kQueued + kCallers * (kEach / 50) * (50 * 51 / 2));
}

}  // namespace
}  // namespace rope::server
