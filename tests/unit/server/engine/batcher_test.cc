#include "server/engine/batcher.h"

#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "proto/mutex.h"
#include "server/error.h"
#include "tests/support/held_batcher.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::HeldBatcher;
using ::rope::testing::kHeldOptions;
using ::rope::testing::kQueued;

using BatcherTest = HeldBatcher;

// Requests of more than 100 bytes run directly, in slices of 400.
constexpr Batcher::Options kSlicedOptions = [] {
  Batcher::Options options = kHeldOptions;
  options.direct_bytes_max = 10000;
  options.gathered_bytes_max = 100;
  return options;
}();

TEST_F(BatcherTest, SmallRequestOnAnIdleDeviceRunsOnItsCallersThread) {
  Start();
  Allow(1);
  Enqueue("small", 100);
  EXPECT_EQ(AnswerOf("small").thread, std::this_thread::get_id());
  EXPECT_THAT(AnswerOf("small").status, IsOk());
  EXPECT_THAT(BatchAt(0), ElementsAre("small 0-100"));
}

TEST_F(BatcherTest, LargeRequestDoesNot) {
  Start();
  Allow(1);
  Enqueue("large", kQueued);
  AwaitAnswers(1);
  EXPECT_NE(AnswerOf("large").thread, std::this_thread::get_id());
}

TEST_F(BatcherTest, RequestOfAnotherThreadQueues) {
  Start();
  Allow(1);
  auto request = MakeRequest("planned", 5);
  request->run.enqueued = clock_.Now();
  EXPECT_THAT(batcher_->Queue(request), IsOk());
  AwaitAnswers(1);
  EXPECT_NE(AnswerOf("planned").thread, std::this_thread::get_id());
}

TEST_F(BatcherTest, LargeDirectRequestRunsOneSliceAtATime) {
  Start(kSlicedOptions);
  Allow(5);
  EnqueueGathering("large", 900);
  EXPECT_THAT(BatchAt(0), ElementsAre("large 0-400"));
  EXPECT_EQ(BatchCount(), 1U) << "the thread looks at its events";
  EnqueueGathering("small", 5);
  EXPECT_TRUE(batcher_->RunGathered());
  EXPECT_THAT(BatchAt(1), ElementsAre("large 400-800"));
  EXPECT_TRUE(batcher_->RunGathered());
  EXPECT_THAT(BatchAt(2), ElementsAre("small 0-5"));
  EXPECT_THAT(AnsweredIds(), ElementsAre("small"));
  EXPECT_TRUE(batcher_->RunGathered());
  EXPECT_THAT(BatchAt(3), ElementsAre("large 800-900"));
  EXPECT_FALSE(batcher_->RunGathered());
  EXPECT_THAT(AnswerOf("large").status, IsOk());
  EXPECT_EQ(AnswerOf("large").thread, std::this_thread::get_id());
}

TEST_F(BatcherTest, BurstOfLargeRequestsTakesOneSliceACallAndQueues) {
  Start(kSlicedOptions);
  Allow(10);
  EnqueueGathering("a", 900);
  EnqueueGathering("b", 900);
  EXPECT_THAT(BatchAt(0), ElementsAre("a 0-400"));
  EXPECT_THAT(BatchAt(1), ElementsAre("a 400-800"));
  AwaitAnswers(2);
  for (const char* id : {"a", "b"}) {
    EXPECT_THAT(AnswerOf(id).status, IsOk());
    EXPECT_NE(AnswerOf(id).thread, std::this_thread::get_id());
  }
}

TEST_F(BatcherTest, GatheredRequestsQueueWhereTheDeviceIsBusyByThen) {
  Start(kSlicedOptions);
  Allow(1);
  EnqueueGathering("large", 900);
  EnqueueGathering("a", 5);
  std::thread other([this] { batcher_->RunGathered(); });  // the next slice of the large one
  AwaitBatches(2);
  EXPECT_FALSE(batcher_->RunGathered());
  Allow(4);
  other.join();
  AwaitAnswers(1);
  EXPECT_NE(AnswerOf("a").thread, std::this_thread::get_id());
  EXPECT_TRUE(batcher_->RunGathered());
  EXPECT_THAT(AnswerOf("large").status, IsOk());
}

TEST_F(BatcherTest, DrainFinishesTheRestOfALargeDirectRequest) {
  Start(kSlicedOptions);
  Allow(5);
  EnqueueGathering("large", 900);
  batcher_->Drain();
  EXPECT_THAT(AnswerOf("large").status, IsOk());
}

TEST_F(BatcherTest, FailingSliceEndsALargeDirectRequestOnce) {
  failing_slice_ = "large 0-400";
  Start(kSlicedOptions);
  Allow(5);
  EnqueueGathering("large", 900);
  EXPECT_THAT(AnswerOf("large").status, IsInternal("broken"));
  EXPECT_FALSE(batcher_->RunGathered());
  batcher_->Drain();
}

TEST_F(BatcherTest, LargeDirectRequestThatIsCancelledBetweenItsSlicesRunsNoMore) {
  Start(kSlicedOptions);
  Allow(5);
  auto request = MakeRequest("large", 900);
  const auto flag = request->arrival.cancelled;
  EnqueueGathering(std::move(request));
  flag->store(true);
  EXPECT_TRUE(batcher_->RunGathered());
  EXPECT_EQ(BatchCount(), 1U);
  EXPECT_THAT(AnswerOf("large").status, Fails(absl::StatusCode::kCancelled, "while it waited"));
}

TEST_F(BatcherTest, SmallRequestsGatherUntilNothingElseHasArrived) {
  Start();
  Allow(1);
  for (const char* id : {"a", "b", "c"}) EnqueueGathering(id, 5);
  EXPECT_EQ(BatchCount(), 0U);
  EXPECT_TRUE(batcher_->RunGathered());
  EXPECT_THAT(BatchAt(0), ElementsAre("a 0-5", "b 0-5", "c 0-5"));
  for (const char* id : {"a", "b", "c"}) {
    EXPECT_EQ(AnswerOf(id).thread, std::this_thread::get_id());
    EXPECT_THAT(AnswerOf(id).status, IsOk());
  }
  ASSERT_THAT(Reports(), SizeIs(1));
  EXPECT_EQ(Reports()[0].closed_by, ClosedBy::kDirect);
  EXPECT_EQ(Reports()[0].requests, 3);
  EXPECT_EQ(Reports()[0].bytes, 15);
  EXPECT_FALSE(batcher_->RunGathered());
}

TEST_F(BatcherTest, GatheredRequestsRunWhenTheyAreEnough) {
  Batcher::Options options = kHeldOptions;
  options.gathered_requests_max = 3;
  options.gathered_bytes_max = 100;
  Start(options);
  Allow(2);
  for (const char* id : {"a", "b", "c", "d", "e"}) EnqueueGathering(id, 5);
  EXPECT_THAT(BatchAt(0), ElementsAre("a 0-5", "b 0-5", "c 0-5"));
  EXPECT_EQ(BatchCount(), 1U);
  EnqueueGathering("large", 90);
  EXPECT_THAT(BatchAt(1), ElementsAre("d 0-5", "e 0-5", "large 0-90"));
}

TEST_F(BatcherTest, OnlyRequestsOfStreamsBeginToGather) {
  Start();
  Allow(1 << 20);
  auto alone = MakeRequest("at once", 5);
  alone->arrival.transport = Transport::kInline;
  EnqueueGathering(std::move(alone));
  EXPECT_EQ(BatchCount(), 1U);
  EnqueueGathering("streamed", 5);
  auto joins = MakeRequest("joins", 5);
  joins->arrival.transport = Transport::kInline;
  EnqueueGathering(std::move(joins));
  EXPECT_EQ(BatchCount(), 1U);
  EXPECT_TRUE(batcher_->RunGathered());
  EXPECT_THAT(BatchAt(1), ElementsAre("streamed 0-5", "joins 0-5"));
}

TEST_F(BatcherTest, BatchesOfOneGatherNothing) {
  StartWith([](auto& options) { options.requests_max = 1; });
  Allow(1);
  EnqueueGathering("at once", 5);
  EXPECT_THAT(BatchAt(0), ElementsAre("at once 0-5"));
}

TEST_F(BatcherTest, GatheredRequestsQueueBeforeOneThatCameLater) {
  Start();
  EnqueueGathering("a", 5);
  Block();
  EnqueueGathering("b", 5);
  Allow(2);
  AwaitAnswers(3);
  EXPECT_THAT(BatchAt(0), ElementsAre("a 0-5", "blocker 0-101"));
  EXPECT_THAT(BatchAt(1), ElementsAre("b 0-5"));
}

TEST_F(BatcherTest, GatheredRequestsDoNotWaitForALargeOne) {
  StartWith([](auto& options) { options.gathered_bytes_max = 50; });
  Allow(2);
  EnqueueGathering("small", 5);
  EnqueueGathering("large", 51);
  EXPECT_THAT(BatchAt(0), ElementsAre("small 0-5"));
  EXPECT_THAT(BatchAt(1), ElementsAre("large 0-51"));
}

TEST_F(BatcherTest, GatheredRequestsThatEndedAreAnsweredWithoutRunning) {
  Start();
  Allow(1);
  auto expired = MakeRequest("expired", 5);
  expired->arrival.deadline = clock_.Now() + absl::Microseconds(10);
  EnqueueGathering(std::move(expired));
  auto cancelled = MakeRequest("cancelled", 5);
  const auto flag = cancelled->arrival.cancelled;
  EnqueueGathering(std::move(cancelled));
  EnqueueGathering("patient", 5);
  clock_.Advance(absl::Microseconds(10));
  flag->store(true);
  EXPECT_TRUE(batcher_->RunGathered());
  EXPECT_THAT(BatchAt(0), ElementsAre("patient 0-5"));
  EXPECT_THAT(AnswerOf("expired").status,
              Fails(absl::StatusCode::kDeadlineExceeded, "while it waited"));
  EXPECT_THAT(AnswerOf("cancelled").status, Fails(absl::StatusCode::kCancelled, "while it waited"));
  EXPECT_THAT(AnswerOf("patient").status, IsOk());
}

TEST_F(BatcherTest, MoreTokensThanABatchHoldsAreSliced) {
  StartWith([](auto& options) { options.tokens_max = 20; });
  Allow(4);
  Enqueue("large", 21);
  EXPECT_THAT(BatchAt(0), ElementsAre("large 0-20"));
  EXPECT_THAT(BatchAt(1), ElementsAre("large 20-21"));
}

TEST_F(BatcherTest, FailingRequestFailsNoOtherThatGatheredWithIt) {
  failing_slice_ = "a 0-5";
  Start();
  Allow(1);
  for (const char* id : {"a", "b"}) EnqueueGathering(id, 5);
  batcher_->RunGathered();
  EXPECT_THAT(AnswerOf("a").status, IsInternal("broken"));
  EXPECT_THAT(AnswerOf("b").status, IsOk());
}

TEST_F(BatcherTest, DrainRunsWhatHasGathered) {
  Start();
  Allow(1);
  EnqueueGathering("gathered", 5);
  batcher_->Drain();
  EXPECT_THAT(AnswerOf("gathered").status, IsOk());
}

TEST_F(BatcherTest, GatheredRequestsSayHowLongTheyWaited) {
  Start();
  Allow(1);
  double queued = -1;
  auto request = MakeRequest("waiting", 5);
  request->done = [&queued](std::unique_ptr<Request> finished, const absl::Status&) {
    queued = finished->stages.queue;
  };
  EnqueueGathering(std::move(request));
  clock_.Advance(absl::Microseconds(30));
  batcher_->RunGathered();
  EXPECT_EQ(queued, 30);
}

TEST_F(BatcherTest, SmallRequestQueuesWhereNoCallerMayRunItsOwn) {
  StartWith([](auto& options) { options.direct_slots = 0; });
  Allow(1);
  Enqueue("small", 1);
  AwaitAnswers(1);
  EXPECT_NE(AnswerOf("small").thread, std::this_thread::get_id());
}

TEST_F(BatcherTest, RequestWithoutTokensIsAnswered) {
  StartWith([](auto& options) { options.direct_bytes_max = -1; });
  Allow(1);
  Enqueue("empty", 0);
  AwaitAnswers(1);
  EXPECT_THAT(AnswerOf("empty").status, IsOk());
}

TEST_F(BatcherTest, WhatArrivesWhileABatchRunsIsTheNextBatch) {
  Start();
  Block();
  for (const char* id : {"a", "b", "c"}) Enqueue(id, 5);
  EXPECT_EQ(BatchCount(), 1U);  // small requests do not overtake the running batch either
  Allow(2);
  AwaitAnswers(4);
  EXPECT_THAT(BatchAt(1), ElementsAre("a 0-5", "b 0-5", "c 0-5"));
  EXPECT_EQ(BatchCount(), 2U);
}

TEST_F(BatcherTest, SessionsTakeTurns) {
  Start();
  Block();
  for (const char* id : {"a1", "a2", "a3"}) Enqueue(id, 5, 1);
  Enqueue("b1", 5, 2);
  for (const char* id : {"c1", "c2"}) Enqueue(id, 5, 3);
  Allow(2);
  AwaitAnswers(7);
  EXPECT_THAT(BatchAt(1), ElementsAre("a1 0-5", "b1 0-5", "c1 0-5", "a2 0-5", "c2 0-5", "a3 0-5"));
}

TEST_F(BatcherTest, TurnsGoOnAcrossBatches) {
  StartWith([](auto& options) { options.requests_max = 1; });
  Block();
  for (const char* id : {"a1", "a2"}) Enqueue(id, 5, 1);
  Enqueue("b1", 5, 2);
  Allow(4);
  AwaitAnswers(4);
  EXPECT_THAT(BatchAt(1), ElementsAre("a1 0-5"));
  EXPECT_THAT(BatchAt(2), ElementsAre("b1 0-5"));
  EXPECT_THAT(BatchAt(3), ElementsAre("a2 0-5"));
}

TEST_F(BatcherTest, LargeRequestIsSplitAndHoldsUpNobodyOfItsSession) {
  Start();
  Block();
  Enqueue("large", 900);
  Enqueue("small", 5);
  Allow(2);
  AwaitAnswers(2);
  EXPECT_THAT(BatchAt(1), ElementsAre("large 0-400", "small 0-5"));
  EXPECT_THAT(AnsweredIds(), ElementsAre("blocker", "small"));
  Allow(2);
  AwaitAnswers(3);
  EXPECT_THAT(BatchAt(2), ElementsAre("large 400-800"));
  EXPECT_THAT(BatchAt(3), ElementsAre("large 800-900"));
  EXPECT_THAT(AnswerOf("large").status, IsOk());
}

TEST_F(BatcherTest, BatchHoldsNoMoreThanItsBytes) {
  Start();
  Block();
  for (const char* id : {"a", "b", "c", "d"}) Enqueue(id, 300);
  Allow(3);
  AwaitAnswers(5);
  EXPECT_THAT(BatchAt(1), ElementsAre("a 0-300", "b 0-300", "c 0-300", "d 0-100"));
  EXPECT_THAT(BatchAt(2), ElementsAre("d 100-300"));
}

TEST_F(BatcherTest, BatchHoldsNoMoreThanItsTokensAndRequests) {
  Batcher::Options options = kHeldOptions;
  options.tokens_max = 150;
  options.requests_max = 2;
  Start(options);
  Block();
  for (const char* id : {"a", "b"}) Enqueue(id, 100);
  for (const char* id : {"c", "d"}) Enqueue(id, 5);
  Allow(4);
  AwaitAnswers(5);
  EXPECT_THAT(BatchAt(1), ElementsAre("a 0-100", "b 0-50"));
  EXPECT_THAT(BatchAt(2), ElementsAre("c 0-5", "d 0-5"));
  EXPECT_THAT(BatchAt(3), ElementsAre("b 50-100"));
}

TEST_F(BatcherTest, TokenLargerThanABatchStillRuns) {
  Start();
  Block();
  auto request = MakeRequest("wide", 2);
  request->plan.bytes_per_token = 5000;
  Enqueue(std::move(request));
  Allow(3);
  AwaitAnswers(2);
  EXPECT_THAT(BatchAt(1), ElementsAre("wide 0-1"));
  EXPECT_THAT(BatchAt(2), ElementsAre("wide 1-2"));
}

TEST_F(BatcherTest, ExpiredAndCancelledAreAnsweredWithoutRunningAndBeforeTheBatch) {
  Start();
  Block();
  auto expired = MakeRequest("expired", 5);
  expired->arrival.deadline = clock_.Now() + absl::Seconds(1);
  Enqueue(std::move(expired));
  auto cancelled = MakeRequest("cancelled", 5);
  const auto flag = cancelled->arrival.cancelled;
  Enqueue(std::move(cancelled));
  auto patient = MakeRequest("patient", 5);
  patient->arrival.deadline = clock_.Now() + absl::Seconds(2);
  Enqueue(std::move(patient));
  clock_.Advance(absl::Seconds(1));
  flag->store(true);
  Allow(1);
  AwaitBatches(2);  // held until the next Allow
  EXPECT_THAT(AnswerOf("expired").status,
              Fails(absl::StatusCode::kDeadlineExceeded, "while it waited"));
  EXPECT_THAT(AnswerOf("cancelled").status, Fails(absl::StatusCode::kCancelled, "while it waited"));
  EXPECT_THAT(BatchAt(1), ElementsAre("patient 0-5"));
  Allow(1);
  AwaitAnswers(4);
}

TEST_F(BatcherTest, OnlyExpiredOnesNeedNoBatch) {
  Start();
  Block();
  auto expired = MakeRequest("expired", 5);
  expired->arrival.deadline = clock_.Now();
  Enqueue(std::move(expired));
  Allow(1);
  AwaitAnswers(2);
  EXPECT_EQ(BatchCount(), 1U);
}

TEST_F(BatcherTest, CancelledBetweenItsSlicesRunsNoMore) {
  Start();
  Block();
  auto large = MakeRequest("large", 900);
  const auto flag = large->arrival.cancelled;
  Enqueue(std::move(large));
  Allow(1);
  AwaitBatches(2);
  flag->store(true);
  Allow(1);
  AwaitAnswers(2);
  EXPECT_THAT(AnswerOf("large").status, Fails(absl::StatusCode::kCancelled, "while it waited"));
  EXPECT_EQ(BatchCount(), 2U);
}

TEST_F(BatcherTest, FailureOfACallThatRanInPlaceSaysSo) {
  for (const bool in_place : {false, true}) {
    for (const bool ran : {false, true}) {
      Start();
      Block();
      auto large = MakeRequest(absl::StrCat("large", in_place, ran), 900);
      large->plan.tensors.resize(2);
      TensorPlan& tensor = large->plan.tensors.back();
      if (in_place) tensor.place = tensor.source = {Region::OfProcess(), 1, 0, 8};
      large->run.began = ran;
      const std::string id = large->arrival.id;
      const auto flag = large->arrival.cancelled;
      Enqueue(std::move(large));
      flag->store(true);
      Allow(1);
      batcher_->Drain();
      EXPECT_THAT(AnswerOf(id).status, Fails(absl::StatusCode::kCancelled, "while it waited"));
      EXPECT_EQ(proto::PartsOf(AnswerOf(id).status).may_have_executed, in_place && ran);
      EXPECT_FALSE(proto::PartsOf(AnswerOf("blocker").status).may_have_executed);
      answer_counts_.clear();
      batches_.clear();
    }
  }
}

TEST_F(BatcherTest, FailingSliceEndsItsRequestOnceAndNoOther) {
  failing_slice_ = "large 0-400";
  Start();
  Block();
  Enqueue("large", 900);
  Enqueue("small", 5);
  Allow(2);
  AwaitAnswers(3);
  EXPECT_THAT(AnswerOf("large").status, IsInternal("broken"));
  EXPECT_THAT(AnswerOf("small").status, IsOk());
  batcher_->Drain();
  EXPECT_EQ(BatchCount(), 2U);  // the rest of it was not run
}

TEST_F(BatcherTest, FailingLastSliceFailsItsRequest) {
  failing_slice_ = "large 400-500";
  Start();
  Block();
  Enqueue("large", 500);
  Allow(3);
  AwaitAnswers(2);
  EXPECT_THAT(AnswerOf("large").status, IsInternal("broken"));
}

TEST_F(BatcherTest, DrainFinishesAllAndRefusesNewOnes) {
  Start();
  Block();
  Enqueue("queued", 5);
  Enqueue("large", 900);
  Allow(10);
  batcher_->Drain();
  EXPECT_THAT(AnsweredIds(), SizeIs(3));
  auto late = MakeRequest("late", 5);
  EXPECT_THAT(batcher_->Enqueue(late), IsUnavailable("draining"));
  ASSERT_NE(late, nullptr);  // still the caller's
  EXPECT_EQ(late->arrival.id, "late");
  EXPECT_THAT(AnswerOf("late").id, "none");
  batcher_->Drain();
}

TEST_F(BatcherTest, DrainWaitsForTheAnswerOfADirectRequest) {
  Start();
  Allow(1);
  proto::Notification answering;
  proto::Notification answered;
  std::atomic<bool> answer_ended = false;
  auto request = MakeRequest("direct", 5);
  request->done = [&](std::unique_ptr<Request>, const absl::Status&) {
    answering.Notify();
    answered.WaitForNotification();
    answer_ended = true;
  };
  std::thread caller([&] { Enqueue(std::move(request)); });
  answering.WaitForNotification();
  proto::Notification drained;
  std::thread drainer([&] {
    batcher_->Drain();
    EXPECT_TRUE(answer_ended);
    drained.Notify();
  });
  EXPECT_FALSE(drained.WaitForNotificationWithTimeout(std::chrono::milliseconds(20)));
  answered.Notify();
  caller.join();
  drainer.join();
}

TEST_F(BatcherTest, DeviceIsFreeAgainWhenTheAnswerIsRead) {
  Start();
  Allow(2);
  auto first = MakeRequest("first", 5);
  first->done = [this](std::unique_ptr<Request>, const absl::Status&) { Enqueue("second", 5); };
  Enqueue(std::move(first));
  EXPECT_EQ(AnswerOf("second").thread, std::this_thread::get_id());
}

TEST_F(BatcherTest, StagesSayHowLongItWaited) {
  Start();
  Block();
  auto request = MakeRequest("waiting", 5);
  double queued = -1;
  request->done = [&queued](std::unique_ptr<Request> finished, const absl::Status&) {
    queued = finished->stages.queue;
  };
  Enqueue(std::move(request));
  clock_.Advance(absl::Microseconds(30));
  Allow(2);
  batcher_->Drain();
  EXPECT_EQ(queued, 30);
}

TEST_F(BatcherTest, ManyCallersAreAllAnsweredOnce) {
  Start();
  Allow(1 << 20);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([this, caller] {
      for (int i = 0; i < 200; ++i) {
        auto request =
            MakeRequest(absl::StrCat(caller, "/", i), i * 7, static_cast<uint64_t>(caller));
        i % 2 == 0 ? EnqueueGathering(std::move(request)) : Enqueue(std::move(request));
        if (i % 5 == 0) batcher_->RunGathered();
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  batcher_->Drain();
  EXPECT_THAT(AnsweredIds(), SizeIs(800));
}

}  // namespace
}  // namespace rope::server
