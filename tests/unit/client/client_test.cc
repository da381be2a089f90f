#include "rope/client.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "proto/error.h"
#include "proto/wire/error_details.h"
#include "tests/support/matchers.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/client/fake_server.h"

namespace rope::client {
namespace {

using std::chrono::milliseconds;

class ClientTest : public ::testing::Test {
 protected:
  Client Connected(const ConnectOptions& options = {}) {
    return Client::Connect(server_.target(), options).value();
  }

  FakeServer server_;
};

// The values as the bytes of a [tokens, 2] tensor of float32.
RotateRequest RequestFor(std::vector<float>& data, float* output) {
  RotateRequest request;
  request.rope.model = "m";
  request.positions.start = 0;
  request.tensors = {{.role = Role::kQ,
                      .layout = "TD",
                      .dtype = DType::kFloat32,
                      .shape = {static_cast<int64_t>(data.size()) / 2, 2},
                      .data = data.data(),
                      .output = output}};
  return request;
}

TEST_F(ClientTest, LargeTensorComesBackInItsOutput) {
  server_.OnRotate(&Echo);
  std::vector<float> data(1 << 20);
  std::iota(data.begin(), data.end(), 0.f);
  std::vector<float> output(data.size());
  ASSERT_OK(reply, Connected().Rotate(RequestFor(data, output.data())));
  EXPECT_EQ(reply->device, "fake");
  EXPECT_EQ(output, data);
}

TEST_F(ClientTest, OutputMayBeTheInput) {
  server_.OnRotate(
      [](grpc::CallbackServerContext& context, const std::string& request, std::string& reply) {
        v1::RotateResponse response;
        const grpc::Status status = Echo(context, request, reply);
        if (!response.ParseFromString(reply)) return grpc::Status::CANCELLED;
        std::string& raw = *response.mutable_tensors(0)->mutable_array()->mutable_raw();
        std::fill(raw.begin(), raw.end(), '\0');
        reply = response.SerializeAsString();
        return status;
      });
  std::vector<float> data(1 << 16, 1.f);
  ASSERT_TRUE(Connected().Rotate(RequestFor(data, data.data())).ok());
  EXPECT_THAT(data, Each(0.f));
}

TEST_F(ClientTest, StatusDetailsNameTheField) {
  server_.OnRotate([](grpc::CallbackServerContext&, const std::string&, std::string&) {
    const v1::Error error =
        proto::ErrorMessageOf(proto::InvalidField("rope.config.factor", 0, "a number > 0"));
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, error.message(),
                        proto::EncodeStatusDetails(error));
  });
  std::vector<float> data(2);
  const auto reply = Connected().Rotate(RequestFor(data, nullptr));
  EXPECT_EQ(reply.status().ToString(),
            "INVALID_ARGUMENT: rope.config.factor: got 0, want a number > 0");
  EXPECT_EQ(reply.status().detail().field, "rope.config.factor");
  EXPECT_EQ(reply.status().detail().got, "0");
  EXPECT_EQ(reply.status().detail().want, "a number > 0");
  EXPECT_EQ(reply.status().detail().reason, Reason::kInvalidField);
}

TEST_F(ClientTest, GarbageIsAnInternalErrorAndTheClientGoesOn) {
  server_.OnRotate(
      [this](grpc::CallbackServerContext& context, const std::string& request, std::string& reply) {
        if (server_.rotate_calls() > 1) return Echo(context, request, reply);
        reply = "\xff\xff garbage";
        return grpc::Status::OK;
      });
  std::vector<float> data(2);
  const Client client = Connected();
  EXPECT_EQ(client.Rotate(RequestFor(data, nullptr)).status().code(), StatusCode::kInternal);
  EXPECT_TRUE(client.Rotate(RequestFor(data, nullptr)).ok());
}

// The address sanitizer detects a read of the tensor after the call.
TEST_F(ClientTest, AfterTheDeadlineNothingRefersToTheTensor) {
  server_.HangOnRotate();
  const Client client = Connected();
  auto data = std::make_unique<std::vector<float>>(4 << 20);
  const auto reply = client.Rotate(RequestFor(*data, nullptr), {.timeout = milliseconds(50)});
  data.reset();
  EXPECT_EQ(reply.status().code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(client.Health().ok());
}

TEST_F(ClientTest, LargerThanTheLimitIsResourceExhausted) {
  server_.OnRotate(&Echo);
  std::vector<float> data(1 << 16);
  const Client client = Connected({.max_message_bytes = 1 << 16});
  EXPECT_EQ(client.Rotate(RequestFor(data, nullptr)).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(server_.rotate_calls(), 0);
}

TEST_F(ClientTest, CopiesOnManyThreadsShareTheConnection) {
  server_.OnRotate(&Echo);
  const Client client = Connected();
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([copy = client, t, &right] {
      std::vector<float> data(3000, static_cast<float>(t));
      for (int i = 0; i < 20; ++i) {
        std::vector<float> output(data.size(), -1.f);
        if (copy.Rotate(RequestFor(data, output.data())).ok() && output == data) ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 80);
}

TEST_F(ClientTest, DescribeAsksAndAnswers) {
  server_.describe_response().set_attention_factor(1.5);
  const Client client = Connected();
  const DescribeRequest request{
      .rope = {.model = "m"}, .seq_len = 9, .positions = {1, 2}, .head_dim = 64};
  ASSERT_OK(reply, client.Describe(request));
  EXPECT_EQ(reply->attention_factor, 1.5);
  EXPECT_EQ(server_.described().seq_len(), 9);
  EXPECT_EQ(server_.described().head_dim(), 64);
  EXPECT_EQ(server_.described().positions_size(), 2);
  ASSERT_OK(json, client.DescribeJson(request));
  EXPECT_THAT(*json, HasSubstr("\"attention_factor\": 1.5"));
}

TEST_F(ClientTest, MethodThatTheServerLacksIsUnimplemented) {
  EXPECT_EQ(Connected().ListModels().status().code(), StatusCode::kUnimplemented);
}

TEST_F(ClientTest, HealthOfAServiceThatIsNotThereIsNotFound) {
  EXPECT_EQ(Connected().Health("nope").status().code(), StatusCode::kNotFound);
}

TEST_F(ClientTest, TargetsAsPeopleWriteThem) {
  EXPECT_TRUE(Client::Connect("http://" + server_.target() + "/").ok());
  const std::string port = server_.target().substr(server_.target().rfind(':'));
  EXPECT_TRUE(Client::Connect("localhost" + port).ok());
  const auto error = [](const std::string& target) {
    return Client::Connect(target, {.timeout = milliseconds(1)}).status().ToString();
  };
  EXPECT_THAT(error("rope.invalid"), HasSubstr(": rope.invalid:50051: "));
  EXPECT_THAT(error("[::1]"), HasSubstr(": [::1]:50051: "));
  EXPECT_EQ(error("https://localhost"),
            "INVALID_ARGUMENT: target: got https://localhost, want HOST:PORT or unix:PATH; TLS is "
            "not supported");
  EXPECT_EQ(error("http://"), "INVALID_ARGUMENT: target: got nothing, want HOST:PORT or unix:PATH");
}

TEST_F(ClientTest, ConnectToAServerThatDoesNotServeFailsUnlessAllowed) {
  server_.SetHealth(grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  EXPECT_THAT(
      Client::Connect(server_.target()),
      StatusIs(StatusCode::kUnavailable, HasSubstr("health: got NOT_SERVING, want SERVING")));
  EXPECT_EQ(Connected({.require_serving = false}).Health().value(), ServingStatus::kNotServing);
}

TEST(ConnectTest, NobodyListeningIsUnavailable) {
  EXPECT_THAT(Client::Connect("unix:/nonexistent/rope.sock", {.timeout = milliseconds(100)}),
              StatusIs(StatusCode::kUnavailable, HasSubstr("unix:/nonexistent/rope.sock: ")));
}

TEST(ConnectTest, NoTargetIsRefused) {
  EXPECT_EQ(Client::Connect("").status().code(), StatusCode::kInvalidArgument);
}

TEST_F(ClientTest, RegistrationWithALostAnswerIsNotRepeated) {
  server_.AnswerModels(grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone"));
  const Client client = Connected();
  const auto registered = client.RegisterModel("mine", {.model = "m"});
  EXPECT_EQ(registered.status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(registered.status().detail().may_have_executed);
  EXPECT_EQ(server_.model_calls(), 1);
  EXPECT_EQ(client.UnregisterModel("mine").code(), StatusCode::kUnavailable);
  EXPECT_EQ(server_.model_calls(), 2);
}

TEST_F(ClientTest, RegistrationThatCertainlyDidNotRunIsRepeated) {
  const v1::Error error = proto::ErrorMessageOf(
      proto::MakeError({.reason = proto::Reason::kDraining, .retry_delay_ms = 1}, "queue: full"));
  server_.AnswerModels(grpc::Status(grpc::StatusCode::UNAVAILABLE, error.message(),
                                    proto::EncodeStatusDetails(error)));
  const Client client = Connected({.attempts_max = 2});
  EXPECT_FALSE(client.RegisterModel("mine", {.model = "m"}).ok());
  EXPECT_EQ(server_.model_calls(), 2);
}

}  // namespace
}  // namespace rope::client
