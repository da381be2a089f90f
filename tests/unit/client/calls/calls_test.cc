#include <gtest/gtest.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/calls/async_call.h"
#include "client/calls/fence.h"
#include "client/calls/prepare_call.h"
#include "client/calls/retry.h"
#include "client/transport/channel.h"
#include "client/transport/waiter.h"
#include "proto/wire/error_details.h"
#include "rope/client.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/client/fake_prepare.h"
#include "tests/unit/client/fake_server.h"

namespace rope::client {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

class AsyncCallTest : public ::testing::Test {
 protected:
  Client Connected() { return Client::Connect(server_.target()).value(); }

  // The first `failures` calls fail with a retry delay.
  void FailFirst(int failures, int64_t delay_ms) {
    to_fail_ = failures;
    server_.OnRotate([this, delay_ms](grpc::CallbackServerContext& context,
                                      const std::string& request, std::string& reply) {
      if (to_fail_.fetch_sub(1) <= 0) return Echo(context, request, reply);
      v1::Error error = proto::ErrorMessageOf(absl::ResourceExhaustedError("full"));
      error.set_retry_delay_ms(delay_ms);
      return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full",
                          proto::EncodeStatusDetails(error));
    });
  }

  const std::vector<float> data_ = {1, 2, 3, 4};
  std::atomic<int> to_fail_ = 0;
  FakeServer server_;
};

// Receives the result of a callback. The future is ready after the first run; a second run fails
// the test.
struct Outcome {
  std::promise<Result<RotateReply>> promise;
  std::thread::id thread;

  RotateCallback callback() {
    return [this](Result<RotateReply> reply) {
      thread = std::this_thread::get_id();
      promise.set_value(std::move(reply));  // throws if the callback runs twice
    };
  }
  Result<RotateReply> Get() { return promise.get_future().get(); }
};

TEST_F(AsyncCallTest, CallbackGetsTheReplyOnOneBackgroundThread) {
  server_.OnRotate(&Echo);
  const Client client = Connected();
  Outcome first;
  Outcome second;
  client.RotateAsync(RequestFor(data_), first.callback());
  client.RotateAsync(RequestFor(data_), second.callback());
  ASSERT_OK(reply, first.Get());
  EXPECT_EQ(reply->request_id, "mine");
  EXPECT_EQ(static_cast<const float*>(reply->tensors[0].data)[3], 4.f);
  EXPECT_TRUE(second.Get().ok());
  EXPECT_NE(first.thread, std::this_thread::get_id());
  EXPECT_EQ(first.thread, second.thread);
}

TEST_F(AsyncCallTest, TheRequestMayGoBeforeTheAnswer) {
  std::promise<void> gone;
  server_.OnRotate([&gone](grpc::CallbackServerContext& context, const std::string& request,
                           std::string& reply) {
    gone.get_future().wait();
    return Echo(context, request, reply);
  });
  const Client client = Connected();
  auto request = std::make_unique<RotateRequest>(RequestFor(data_));
  auto reply = client.RotateFuture(*request);
  request.reset();
  gone.set_value();
  EXPECT_TRUE(reply.get().ok());
}

TEST_F(AsyncCallTest, BadTensorIsAnErrorInTheCallbackAndNothingIsSent) {
  RotateRequest request = RequestFor(data_);
  request.tensors[0].data = nullptr;
  Outcome outcome;
  const Client client = Connected();
  client.RotateAsync(request, outcome.callback());
  EXPECT_THAT(outcome.Get().status().ToString(),
              HasSubstr("INVALID_ARGUMENT: tensors[0].data: got null"));
  EXPECT_NE(outcome.thread, std::this_thread::get_id());
  EXPECT_EQ(server_.rotate_calls(), 0);
}

TEST_F(AsyncCallTest, TransientFailureIsTriedAgain) {
  FailFirst(2, 1);
  EXPECT_TRUE(Connected().RotateFuture(RequestFor(data_)).get().ok());
  EXPECT_EQ(server_.rotate_calls(), 3);
}

TEST_F(AsyncCallTest, OtherCallsRunWhileOneWaitsToTryAgain) {
  FailFirst(1, 2000);
  const Client client = Connected();
  std::atomic<bool> first_is_done = false;
  std::promise<bool> first;
  client.RotateAsync(RequestFor(data_), [&](Result<RotateReply> reply) {
    first_is_done = true;
    first.set_value(reply.ok());
  });
  while (to_fail_ > 0) std::this_thread::yield();
  EXPECT_TRUE(client.RotateFuture(RequestFor(data_)).get().ok());
  EXPECT_FALSE(first_is_done);
  EXPECT_TRUE(first.get_future().get());
}

TEST_F(AsyncCallTest, NoAnswerEndsAtTheDeadline) {
  server_.HangOnRotate();
  const auto reply =
      Connected().RotateFuture(RequestFor(data_), {.timeout = milliseconds(50)}).get();
  EXPECT_EQ(reply.status().code(), StatusCode::kDeadlineExceeded);
}

TEST_F(AsyncCallTest, CancelEndsACallInFlightAndLeavesItsOutput) {
  server_.HangOnRotate();
  const std::vector<float> data(1 << 20);
  std::vector<float> output(data.size(), 7.f);
  Outcome outcome;
  const Client client = Connected();
  const Call call = client.RotateAsync(RequestFor(data, output.data()), outcome.callback());
  call.Cancel();
  call.Cancel();
  const auto reply = outcome.Get();
  EXPECT_EQ(reply.status().ToString(), "CANCELLED: cancelled by the caller");
  EXPECT_THAT(output, Each(7.f));
  call.Cancel();  // the call has ended long before
}

TEST_F(AsyncCallTest, CancelEndsAWaitToTryAgain) {
  FailFirst(1, 60000);
  Outcome outcome;
  const Client client = Connected();
  const Call call =
      client.RotateAsync(RequestFor(data_), outcome.callback(), {.timeout = seconds(1000)});
  while (to_fail_ > 0) std::this_thread::yield();
  // This answer follows the failure of the first call, which is now waiting for its retry.
  EXPECT_TRUE(client.RotateFuture(RequestFor(data_)).get().ok());
  call.Cancel();
  EXPECT_EQ(outcome.Get().status().code(), StatusCode::kCancelled);
  EXPECT_EQ(server_.rotate_calls(), 2);
}

TEST_F(AsyncCallTest, CancelOfNoCallDoesNothing) {
  Call().Cancel();
}

TEST_F(AsyncCallTest, CallbackMayStartTheNextCallAndBlockOnOne) {
  server_.OnRotate(&Echo);
  const Client client = Connected();
  std::promise<bool> last;
  int left = 50;
  std::function<void(Result<RotateReply>)> next = [&](const Result<RotateReply>& reply) {
    if (!reply.ok() || --left == 0) return last.set_value(client.Rotate(RequestFor(data_)).ok());
    client.RotateAsync(RequestFor(data_), next);
  };
  client.RotateAsync(RequestFor(data_), next);
  EXPECT_TRUE(last.get_future().get());
  EXPECT_EQ(server_.rotate_calls(), 51);
}

TEST_F(AsyncCallTest, WhenTheLastClientGoesCallsInFlightAreCancelled) {
  server_.HangOnRotate();
  std::atomic<int> cancelled = 0;
  {
    const Client client = Connected();
    for (int i = 0; i < 20; ++i) {
      client.RotateAsync(RequestFor(data_), [&cancelled](const Result<RotateReply>& reply) {
        cancelled += reply.status().code() == StatusCode::kCancelled;
      });
    }
  }
  EXPECT_EQ(cancelled, 20);
}

TEST_F(AsyncCallTest, TheLastClientMayGoInsideACallback) {
  std::promise<void> hangs;
  server_.OnRotate([this, &hangs](grpc::CallbackServerContext& context, const std::string& request,
                                  std::string& reply) {
    server_.HangOnRotate();  // applies to every later call
    hangs.set_value();
    return Echo(context, request, reply);
  });
  auto client = std::make_shared<Client>(Connected());
  Outcome first;
  Outcome second;
  std::promise<void> both_sent;
  client->RotateAsync(RequestFor(data_), [&first, &both_sent, last = client](auto reply) mutable {
    both_sent.get_future().wait();
    last.reset();  // the last copy: the test resets its own before both_sent
    first.callback()(std::move(reply));
  });
  hangs.get_future().wait();
  client->RotateAsync(RequestFor(data_), second.callback());
  client.reset();
  both_sent.set_value();
  EXPECT_TRUE(first.Get().ok());
  EXPECT_EQ(second.Get().status().code(), StatusCode::kCancelled);
}

TEST_F(AsyncCallTest, BackgroundThreadSleepsWhileItWaits) {
  server_.HangOnRotate();
  const Client client = Connected();
  const auto reply = client.RotateFuture(RequestFor(data_), {.timeout = milliseconds(300)});
  const auto cpu_ms = [] {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
  };
  const auto before = cpu_ms();
  reply.wait();
  EXPECT_LT(cpu_ms() - before, 100);
}

// A server that gives region 7 the ids 8, 9 and so on, and records its requests.
class FenceTest : public ::testing::Test {
 protected:
  FenceTest() {
    server_.OnRegisterRegion(
        [this](const v1::RegisterRegionRequest& request, v1::RegisterRegionResponse& response) {
          Note(absl::StrCat("register ", request.region_id()));
          response.set_region_id(request.region_id() + 1);
          return registered_;
        });
    server_.OnUnregisterRegion([this](const v1::UnregisterRegionRequest& request) {
      Note(absl::StrCat(request.wait() ? "wait for " : "unregister ", request.region_id()));
      const bool known = request.wait() || !forgotten_;
      return known ? waited_ : grpc::Status(grpc::StatusCode::NOT_FOUND, "region_id: got");
    });
  }

  Status Fence(milliseconds timeout = seconds(60)) {
    return AwaitFence(stub_, ids_, RegionIds::Clock::now() + BoundedTimeout(timeout));
  }
  std::vector<std::string> Asked() {
    const std::lock_guard<std::mutex> lock(mu_);
    return std::exchange(asked_, {});
  }

  grpc::Status registered_;  // how each method ends
  grpc::Status waited_;
  bool forgotten_ = false;  // true: ids without `wait` are unregistered already
  RegionIds ids_{7};

 private:
  void Note(std::string what) {
    const std::lock_guard<std::mutex> lock(mu_);
    asked_.push_back(std::move(what));
  }

  std::mutex mu_;
  std::vector<std::string> asked_;  // guarded by mu_
  FakeServer server_;
  const Stub stub_{MakeChannel(server_.target(), {}), {}};
};

TEST_F(FenceTest, NextIdIsTakenBeforeTheOneBeforeIsWaitedFor) {
  ASSERT_TRUE(Fence().ok());
  EXPECT_THAT(Asked(), ElementsAre("register 7", "wait for 7"));
  EXPECT_EQ(*ids_.Acquire(), 8u);
  ASSERT_TRUE(Fence(milliseconds::max()).ok());
  EXPECT_THAT(Asked(), ElementsAre("register 8", "wait for 8"));
  EXPECT_THAT(ids_.replaced(), IsEmpty());
}

TEST_F(FenceTest, CallsThatNameTheIdAreWaitedForBeforeItGoes) {
  RegionIds::Lease call = ids_.Acquire();
  EXPECT_THAT(Fence(milliseconds(1000)),
              StatusIs(StatusCode::kDeadlineExceeded, HasSubstr("fence: ")));
  EXPECT_THAT(Asked(), ElementsAre("register 7"));
  EXPECT_EQ(*ids_.Acquire(), 8u) << "calls go on";
  call.reset();
  ASSERT_TRUE(Fence().ok());
  EXPECT_THAT(Asked(), ElementsAre("register 8", "unregister 7", "wait for 8"));
  EXPECT_EQ(*ids_.Acquire(), 9u);
}

TEST_F(FenceTest, FenceThatWasGivenUpIsGoneOnWith) {
  waited_ = {grpc::StatusCode::DEADLINE_EXCEEDED, "still at work"};
  EXPECT_EQ(Fence().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Fence().code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Asked(), ElementsAre("register 7", "wait for 7", "register 8", "unregister 7"));
  waited_ = grpc::Status::OK;
  forgotten_ = true;  // the server has unregistered the first id
  ASSERT_TRUE(Fence().ok());
  EXPECT_THAT(Asked(), ElementsAre("register 9", "unregister 7", "unregister 8", "wait for 9"));
  EXPECT_THAT(ids_.replaced(), IsEmpty());
}

TEST_F(FenceTest, ServerThatHasLostTheRegionSaysSo) {
  registered_ = {grpc::StatusCode::NOT_FOUND, "region_id: got 7, want a region"};
  EXPECT_EQ(Fence().code(), StatusCode::kNotFound);
  EXPECT_EQ(*ids_.Acquire(), 7u);
  registered_ = grpc::Status::OK;
  waited_ = {grpc::StatusCode::NOT_FOUND, "region_id: got 7, want a region"};
  EXPECT_EQ(Fence().code(), StatusCode::kNotFound) << "only ids of fences before may be gone";
}

TEST_F(FenceTest, OtherFenceUnderWayIsWaitedFor) {
  {
    const auto turn = ids_.TakeTurn(RegionIds::Clock::now());
    EXPECT_EQ(Fence(milliseconds(1)).code(), StatusCode::kDeadlineExceeded);
    EXPECT_THAT(Asked(), IsEmpty());
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([this] { EXPECT_TRUE(Fence().ok()); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(*ids_.Acquire(), 11u);
}

using Counts = FakePrepare::Counts;

const CallOptions kOnce = {.attempts_max = 1};

class PrepareCallTest : public ::testing::Test {
 protected:
  // A request with other values each time.
  RotateRequest Next() {
    data_ = {++step_, -step_};
    RotateRequest request{.request_id = std::to_string(step_),
                          .rope = {.model = "m"},
                          .positions = {.start = static_cast<int64_t>(step_)}};
    request.tensors = {{.layout = "TD", .shape = {1, 2}, .data = data_.data()}};
    return request;
  }
  // The values of the next request as a call with `rotation`.
  RotateRequest Next(const PreparedRotation& rotation) {
    RotateRequest request = Next();
    request.prepared = rotation;
    request.rope = {};
    request.tensors = {{.data = data_.data()}};
    return request;
  }
  // The reply is that of the last request.
  void Check(const Result<RotateReply>& reply) const {
    ASSERT_TRUE(reply.ok()) << reply.status().ToString();
    EXPECT_EQ(reply->request_id, std::to_string(step_));
    ASSERT_EQ(reply->tensors.size(), 1u);
    EXPECT_THAT(reply->tensors[0].shape, ElementsAre(1, 2));
    EXPECT_EQ(static_cast<const float*>(reply->tensors[0].data)[1], -step_);
  }
  Client Connected() { return Client::Connect(fake_.target()).value(); }

  float step_ = 0;
  std::vector<float> data_;
  FakeServer fake_;
  FakePrepare server_{fake_};
};

TEST_F(PrepareCallTest, APreparedRotationGoesByItsIdAtOnceOnEveryPath) {
  const Client client = Connected();
  ASSERT_OK(rotation, client.Prepare(Next()));
  EXPECT_EQ(rotation->id(), "prepared-1");
  EXPECT_THAT(rotation->warnings(), ElementsAre("careful"));
  Check(client.Rotate(Next(*rotation)));
  Check(client.RotateFuture(Next(*rotation)).get());
  EXPECT_EQ(server_.counts(), (Counts{.questions = 1, .whole = 0, .by_id = 2}));
  EXPECT_FALSE(server_.received().has_rope());
}

TEST_F(PrepareCallTest, AForgottenIdIsFollowedByTheWholeRequestInTheSameAttempt) {
  const Client client = Connected();
  const PreparedRotation rotation = client.Prepare(Next()).value();
  server_.Forget();
  Check(client.Rotate(Next(rotation), kOnce));
  EXPECT_EQ(server_.counts(), (Counts{.questions = 2, .whole = 1, .by_id = 1}));
  Check(client.Rotate(Next(rotation), kOnce));
  EXPECT_EQ(server_.counts(), (Counts{.questions = 2, .whole = 1, .by_id = 2}));
}

TEST_F(PrepareCallTest, WhatTheServerDoesNotPrepareAgainGoesWhole) {
  const Client client = Connected();
  const PreparedRotation rotation = client.Prepare(Next()).value();
  server_.Forget();
  server_.Refuse({grpc::StatusCode::RESOURCE_EXHAUSTED, "rotate: got 1, want 0"});
  for (int i = 0; i < 3; ++i) Check(client.Rotate(Next(rotation), kOnce));
  EXPECT_EQ(server_.counts(), (Counts{.questions = 4, .whole = 3, .by_id = 3}));
}

TEST_F(PrepareCallTest, TheLengthOfAnOpenAxisIsSentWithTheShape) {
  const Client client = Connected();
  RotateRequest largest = Next();
  largest.tensors[0].shape = {8, 2};
  const PreparedRotation rotation = client.Prepare(largest, "T").value();
  EXPECT_EQ(server_.asked().open_axis(), "T");
  Check(client.Rotate(Next(rotation.WithLength(1))));
  EXPECT_THAT(server_.received().tensors(0).array().shape(), ElementsAre(1, 2));
  server_.Forget();
  Check(client.Rotate(Next(rotation.WithLength(1))));
}

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
  return {.attempts = attempts, .idempotent = true, .left = seconds(30)};
}

TEST(RetryTest, UnavailableBacksOffDoublingToTheBound) {
  EXPECT_EQ(RetryDelay(kPolicy, After(1), Unavailable(), 0), milliseconds(50));
  EXPECT_EQ(RetryDelay(kPolicy, After(2), Unavailable(), 0), milliseconds(100));
  EXPECT_EQ(RetryDelay(kPolicy, After(3), Unavailable(), 0), milliseconds(150));
}

TEST(RetryTest, RandomStretchesTheBackoff) {
  EXPECT_EQ(RetryDelay(kPolicy, After(1), Unavailable(), 0.5), milliseconds(75));
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
  state.left = milliseconds(50);
  EXPECT_EQ(RetryDelay(kPolicy, state, Unavailable(), 0), std::nullopt);
  state.left += microseconds(1);
  EXPECT_EQ(RetryDelay(kPolicy, state, Unavailable(), 0), milliseconds(50));
}

TEST(RetryTest, HugeDelayFromTheWireStopsWithoutOverflow) {
  EXPECT_EQ(RetryDelay(kPolicy, After(1), Full(INT64_MAX), 0), std::nullopt);
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
