#include "client/remote_connection.h"

#include <gtest/gtest.h>

#include <vector>

#include "proto/wire/error_details.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/client/fake_server.h"

namespace rope::client {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// A connection that records its delays instead of sleeping.
class RemoteConnectionTest : public ::testing::Test {
 protected:
  Result<grpc::ByteBuffer> Rotate(bool idempotent = true, const CallOptions& options = {},
                                  const ConnectOptions& connect = {}) {
    RemoteConnection connection(server_.target(), connect,
                                {.sleep = [this](microseconds delay) { delays_.push_back(delay); },
                                 .random = [] { return 0.0; }});
    EXPECT_TRUE(connection.Connect(std::chrono::seconds(10)).ok());
    const grpc::Slice slice(std::string("request"));
    return connection.CallNamed("/rope.v1.RopeService/Rotate", grpc::ByteBuffer(&slice, 1),
                                idempotent, options);
  }

  // The first `failures` calls fail with `status`; the next one succeeds.
  void FailFirst(int failures, const grpc::Status& status) {
    server_.OnRotate([this, failures, status](grpc::CallbackServerContext&, const std::string&,
                                              std::string& reply) {
      reply = "reply";
      return server_.rotate_calls() <= failures ? status : grpc::Status::OK;
    });
  }

  FakeServer server_;
  std::vector<microseconds> delays_;
};

TEST_F(RemoteConnectionTest, TransientThenSuccessSleepsBetween) {
  FailFirst(2, {grpc::StatusCode::UNAVAILABLE, "draining"});
  EXPECT_TRUE(Rotate().ok());
  EXPECT_THAT(delays_, ElementsAre(milliseconds(50), milliseconds(100)));
}

TEST_F(RemoteConnectionTest, TooManyTransientFailuresGiveTheLast) {
  FailFirst(100, {grpc::StatusCode::UNAVAILABLE, "draining"});
  EXPECT_THAT(Rotate(), StatusIs(StatusCode::kUnavailable, "draining"));
  EXPECT_EQ(server_.rotate_calls(), 4);
}

// A server that shuts down, and a proxy that has lost its server in an answer.
TEST_F(RemoteConnectionTest, CallThatWasCutOnItsWayIsTransient) {
  for (const auto code : {grpc::StatusCode::CANCELLED, grpc::StatusCode::INTERNAL}) {
    FailFirst(server_.rotate_calls() + 1, {code, "reset"});
    EXPECT_TRUE(Rotate().ok());
    FailFirst(server_.rotate_calls() + 100, {code, "reset"});
    const auto reply = Rotate();
    EXPECT_EQ(reply.status().ToString(), "UNAVAILABLE: server: ended the call (reset)");
    EXPECT_TRUE(reply.status().detail().may_have_executed);
  }
}

TEST_F(RemoteConnectionTest, InternalErrorOfTheServerIsPermanent) {
  const v1::Error error = proto::ErrorMessageOf(absl::InternalError("device: lost"));
  FailFirst(100, {grpc::StatusCode::INTERNAL, error.message(), proto::EncodeStatusDetails(error)});
  EXPECT_EQ(Rotate().status().code(), StatusCode::kInternal);
  EXPECT_EQ(server_.rotate_calls(), 1);
}

TEST_F(RemoteConnectionTest, AttemptsMaxOfOneNeverRetries) {
  FailFirst(100, {grpc::StatusCode::UNAVAILABLE, "draining"});
  EXPECT_FALSE(Rotate(true, {.attempts_max = 1}).ok());
  EXPECT_EQ(server_.rotate_calls(), 1);
}

TEST_F(RemoteConnectionTest, TransientFailureNotIdempotentStops) {
  FailFirst(1, {grpc::StatusCode::UNAVAILABLE, "draining"});
  EXPECT_FALSE(Rotate(/*idempotent=*/false).ok());
  EXPECT_THAT(delays_, IsEmpty());
}

TEST_F(RemoteConnectionTest, PermanentFailureStops) {
  FailFirst(1, {grpc::StatusCode::INVALID_ARGUMENT, "x: got 1, want 2"});
  EXPECT_EQ(Rotate().status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(server_.rotate_calls(), 1);
}

TEST_F(RemoteConnectionTest, DelayInTheDetailsIsWaited) {
  v1::Error error =
      proto::ErrorMessageOf(absl::ResourceExhaustedError("queue: got 9 bytes, want at most 8"));
  error.set_retry_delay_ms(700);
  FailFirst(1, {grpc::StatusCode::RESOURCE_EXHAUSTED, error.message(),
                proto::EncodeStatusDetails(error)});
  EXPECT_TRUE(Rotate().ok());
  EXPECT_THAT(delays_, ElementsAre(milliseconds(750)));
}

TEST_F(RemoteConnectionTest, DelayInTheTrailerIsWaited) {
  server_.OnRotate([this](grpc::CallbackServerContext& context, const std::string&, std::string&) {
    if (server_.rotate_calls() > 1) return grpc::Status::OK;
    context.AddTrailingMetadata("grpc-retry-pushback-ms", "300");
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full");
  });
  EXPECT_TRUE(Rotate().ok());
  EXPECT_THAT(delays_, ElementsAre(milliseconds(350)));
}

TEST_F(RemoteConnectionTest, DelayPastTheDeadlineGivesTheFailure) {
  v1::Error error = proto::ErrorMessageOf(absl::ResourceExhaustedError("full"));
  error.set_retry_delay_ms(60000);
  FailFirst(1, {grpc::StatusCode::RESOURCE_EXHAUSTED, "full", proto::EncodeStatusDetails(error)});
  const auto reply = Rotate();
  EXPECT_EQ(reply.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(reply.status().detail().retry_delay_ms, 60000);
  EXPECT_THAT(delays_, IsEmpty());
}

TEST_F(RemoteConnectionTest, NoAnswerEndsAtTheDeadline) {
  server_.HangOnRotate();
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(Rotate(true, {.timeout = milliseconds(50)}).status().code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_THAT(delays_, IsEmpty());
}

TEST_F(RemoteConnectionTest, WithoutSpinningTheAnswerComesToo) {
  FailFirst(0, grpc::Status::OK);
  EXPECT_TRUE(Rotate(true, {}, {.spin = microseconds(0)}).ok());
}

}  // namespace
}  // namespace rope::client
