#include "client/calls/async_call.h"

#include <gtest/gtest.h>
#include <time.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "proto/wire/error_details.h"
#include "rope/client.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/client/fake_server.h"

namespace rope::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The values as a [tokens, 2] tensor of float32.
RotateRequest RequestFor(const std::vector<float>& data, float* output = nullptr) {
  RotateRequest request;
  request.request_id = "mine";
  request.rope.model = "m";
  request.positions.start = 0;
  request.tensors = {{.layout = "TD",
                      .shape = {static_cast<int64_t>(data.size()) / 2, 2},
                      .data = data.data(),
                      .output = output}};
  return request;
}

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

}  // namespace
}  // namespace rope::client
