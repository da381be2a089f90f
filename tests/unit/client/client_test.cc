#include "rope/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "client/error.h"
#include "client/remote_connection.h"
#include "proto/wire/error_details.h"
#include "rope/mock.h"
#include "rope/v1/rotate.pb.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/client/fake_server.h"

namespace rope::client {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using ::testing::_;
using ::testing::DoAll;
using ::testing::NiceMock;
using ::testing::Return;
using ::testing::SaveArg;

class ClientTest : public ::testing::Test {
 protected:
  Client Connected(const ConnectOptions& options = {}) {
    return Client::Connect(server_.target(), options).value();
  }

  FakeServer server_;
};

TEST_F(ClientTest, GarbageIsAnInternalErrorAndTheClientGoesOn) {
  server_.OnRotate(
      [this](grpc::CallbackServerContext& context, const std::string& request, std::string& reply) {
        if (server_.rotate_calls() > 1) return Echo(context, request, reply);
        reply = "\xff\xff garbage";
        return grpc::Status::OK;
      });
  std::vector<float> data(2);
  const Client client = Connected();
  EXPECT_EQ(client.Rotate(RequestFor(data)).status().code(), StatusCode::kInternal);
  EXPECT_TRUE(client.Rotate(RequestFor(data)).ok());
}

// The address sanitizer detects a read of the tensor after the call.
TEST_F(ClientTest, AfterTheDeadlineNothingRefersToTheTensor) {
  server_.HangOnRotate();
  const Client client = Connected();
  const CallOptions options = {.timeout = milliseconds(50)};
  for (const bool is_async : {false, true}) {
    auto data = std::make_unique<std::vector<float>>(4 << 20);
    const RotateRequest request = RequestFor(*data);
    const auto reply =
        is_async ? client.RotateFuture(request, options).get() : client.Rotate(request, options);
    data.reset();
    EXPECT_EQ(reply.status().code(), StatusCode::kDeadlineExceeded);
  }
  EXPECT_TRUE(client.Health().ok());
}

TEST_F(ClientTest, LargerThanTheLimitIsResourceExhausted) {
  server_.OnRotate(&Echo);
  std::vector<float> data(1 << 16);
  const Client client = Connected({.max_message_bytes = 1 << 16});
  EXPECT_EQ(client.Rotate(RequestFor(data)).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(server_.rotate_calls(), 0);
}

TEST_F(ClientTest, MethodThatTheServerLacksIsUnimplemented) {
  EXPECT_EQ(Connected().CallJson("ListModels", "{}").status().code(), StatusCode::kUnimplemented);
}

TEST_F(ClientTest, MetadataGoesWithEachRpcOfACall) {
  std::mutex mu;
  std::vector<std::string> seen;
  const auto note = [&](const auto& context) {
    const std::lock_guard<std::mutex> lock(mu);
    const auto found = context.client_metadata().find("x-tenant");
    seen.push_back(found == context.client_metadata().end()
                       ? ""
                       : std::string(found->second.data(), found->second.size()));
  };
  server_.OnRotate(
      [&](grpc::CallbackServerContext& context, const std::string& request, std::string& reply) {
        note(context);
        return Echo(context, request, reply);
      });
  const Client client = Connected();
  std::vector<float> data(4);
  EXPECT_TRUE(client.Rotate(RequestFor(data), {.metadata = {{"x-tenant", "a"}}}).ok());
  EXPECT_TRUE(client.RotateFuture(RequestFor(data), {.metadata = {{"x-tenant", "b"}}}).get().ok());
  EXPECT_TRUE(client.Rotate(RequestFor(data)).ok());
  EXPECT_THAT(seen, ElementsAre("a", "b", ""));
}

TEST_F(ClientTest, MetadataThatGrpcDoesNotSendIsRefusedByPlace) {
  server_.OnRotate(&Echo);
  const Client client = Connected();
  std::vector<float> data(4);
  const std::string newline = "a\nb";
  for (const auto& [name, value] :
       {std::pair("Upper", "v"), std::pair("", "v"), std::pair(":path", "/"),
        std::pair("grpc-timeout", "1S"), std::pair("grpclb_client_stats", "v"),
        std::pair("te", "v"), std::pair("with space", "v"), std::pair("x", newline.c_str())}) {
    const Metadata metadata = {{"fine", "v"}, {name, value}};
    const auto is_refused = StatusIs(StatusCode::kInvalidArgument, StartsWith("metadata[1]: got "));
    EXPECT_THAT(client.Rotate(RequestFor(data), {.metadata = metadata}), is_refused);
    EXPECT_THAT(client.RotateFuture(RequestFor(data), {.metadata = metadata}).get(), is_refused);
    EXPECT_THAT(client.Health({}, {.metadata = metadata}), is_refused);
  }
  const Metadata any = {{"x-bin", std::string("\0\n", 2)}, {"x", ""}};
  EXPECT_TRUE(client.Rotate(RequestFor(data), {.metadata = any}).ok());
}

TEST_F(ClientTest, ConnectToAServerThatDoesNotServeFailsUnlessAllowed) {
  server_.SetHealth(grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  EXPECT_THAT(
      Client::Connect(server_.target()),
      StatusIs(StatusCode::kUnavailable, HasSubstr("health: got NOT_SERVING, want SERVING")));
  EXPECT_EQ(Connected({.require_serving = false}).Health().value(), ServingStatus::kNotServing);
}

// This program has no engine.
TEST(ConnectTest, InProcessWantsAnEngine) {
  EXPECT_EQ(Client::Connect("inproc:").status().ToString(),
            "FAILED_PRECONDITION: target: got inproc:, want a call of rope::embedded::Enable "
            "before it");
}

TEST(ConnectTest, NoTargetIsRefused) {
  EXPECT_EQ(Client::Connect("").status().code(), StatusCode::kInvalidArgument);
}

TEST(ClientErrorTest, ReasonsHaveTheValuesAndNamesOfTheSchema) {
  const google::protobuf::EnumDescriptor& schema = *v1::Reason_descriptor();
  for (int i = 0; i < schema.value_count(); ++i) {
    EXPECT_EQ("REASON_" + std::string(Name(static_cast<Reason>(schema.value(i)->number()))),
              schema.value(i)->name());
  }
  EXPECT_STREQ(Name(static_cast<Reason>(schema.value(schema.value_count() - 1)->number() + 1)),
               "UNSPECIFIED");
}

TEST(ClientErrorTest, ReasonOfALaterServerIsUnspecified) {
  v1::Error error;
  error.set_reason(static_cast<v1::Reason>(1000));
  EXPECT_EQ(DetailOf(error).reason, Reason::kUnspecified);
  error.set_reason(v1::REASON_DEVICE_FAULT);
  EXPECT_EQ(DetailOf(error).reason, Reason::kDeviceFault);
}

TEST(ClientErrorTest, ErrorsOfGrpcGetTheReasonOfTheirCode) {
  EXPECT_EQ(ReasonOf(StatusCode::kUnavailable), Reason::kConnectionLost);
  EXPECT_EQ(ReasonOf(StatusCode::kDeadlineExceeded), Reason::kDeadline);
  EXPECT_EQ(ReasonOf(StatusCode::kDataLoss), Reason::kUnspecified);
}

// --- A program with a mock in place of the connection ---

// The code of a program: the id of the last reply, or a text for the error.
std::string IdOf(const Client& client, int64_t position) {
  RotateRequest request;
  request.positions.start = position;
  const Result<RotateReply> reply = client.Rotate(request);
  return reply.ok() ? reply->request_id : "failed: " + reply.status().ToString();
}

class MockTest : public ::testing::Test {
 protected:
  const std::shared_ptr<NiceMock<MockConnection>> connection_ =
      std::make_shared<NiceMock<MockConnection>>();
  const Client client_{connection_};
};

TEST_F(MockTest, ReplyAndErrorReachTheProgram) {
  EXPECT_CALL(*connection_, Rotate)
      .WillOnce([](const RotateRequest& request, const CallOptions&) {
        return RotateReply{.request_id = std::to_string(request.positions.start.value())};
      })
      .WillOnce(Return(Status(StatusCode::kUnavailable, "draining")));
  EXPECT_EQ(IdOf(client_, 7), "7");
  EXPECT_EQ(IdOf(client_, 8), "failed: UNAVAILABLE: draining");
}

TEST_F(MockTest, AsynchronousCallsAreAnsweredAndCancelled) {
  EXPECT_CALL(*connection_, RotateAsync).WillOnce(AnswerWith([](const RotateRequest& request) {
    return RotateReply{.request_id = request.request_id};
  }));
  EXPECT_EQ(client_.RotateFuture({.request_id = "mine"}).get()->request_id, "mine");

  RotateCallback callback;
  bool cancelled = false;
  EXPECT_CALL(*connection_, RotateAsync).WillOnce(DoAll(SaveArg<1>(&callback), [&](auto&&...) {
    return Call([&cancelled] { cancelled = true; });
  }));
  Status status;
  const Call call = client_.RotateAsync({}, [&](const auto& reply) { status = reply.status(); });
  call.Cancel();
  EXPECT_TRUE(cancelled);
  callback(Status(StatusCode::kCancelled, "by the caller"));
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
}

TEST_F(MockTest, ArenaIsMemoryThatNoServerShares) {
  Slot slot = client_.arena().Allocate(4096).value();
  std::memset(slot.data(), 1, 4096);
  EXPECT_EQ(client_.arena().capacity_bytes(), MockConnection::kArenaBytes);
  EXPECT_EQ(client_.arena().used_bytes(), 4096);
  EXPECT_EQ(client_.transport().transport, Transport::kInline);
}

TEST_F(MockTest, PreparedRotationsCanBeMadeWithoutAServer) {
  const std::vector<float> data(4, 1.f);
  RotateRequest request{.rope = {.model = "m"}};
  request.tensors = {{.layout = "SD", .shape = {2, 2}, .data = data.data()}};
  EXPECT_CALL(*connection_, Prepare(_, "S", _))
      .WillOnce([](const RotateRequest& prepared, const std::string& open_axis, const auto&) {
        return PreparedRotation::CreateLocal(prepared, open_axis);
      });
  const PreparedRotation prepared = client_.Prepare(request, "S").value();
  EXPECT_EQ(prepared.id(), std::string(32, '0'));
  request.prepared = prepared;
  EXPECT_EQ(PreparedRotation::CreateLocal(request).status().message(),
            "prepared: got a prepared rotation, want a whole request");
}

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
