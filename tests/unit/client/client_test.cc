#include "rope/client.h"

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
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
  EXPECT_EQ(Connected().CallJson("ListModels", "{}").status().code(), StatusCode::kUnimplemented);
}

TEST_F(ClientTest, HealthOfAServiceThatIsNotThereIsNotFound) {
  EXPECT_EQ(Connected().Health("nope").status().code(), StatusCode::kNotFound);
}

TEST_F(ClientTest, TargetIsReadAsPeopleWriteIt) {
  EXPECT_TRUE(Client::Connect("http://" + server_.target() + "/").ok());
  // The code depends on whether the name server answers before the timeout.
  EXPECT_THAT(Client::Connect("rope.invalid", {.timeout = milliseconds(1)}).status().message(),
              HasSubstr("rope.invalid:50051: "));
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
  EXPECT_TRUE(client.Rotate(RequestFor(data, nullptr), {.metadata = {{"x-tenant", "a"}}}).ok());
  EXPECT_TRUE(
      client.RotateFuture(RequestFor(data, nullptr), {.metadata = {{"x-tenant", "b"}}}).get().ok());
  EXPECT_TRUE(client.Rotate(RequestFor(data, nullptr)).ok());
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
    EXPECT_THAT(client.Rotate(RequestFor(data, nullptr), {.metadata = metadata}), is_refused);
    EXPECT_THAT(client.RotateFuture(RequestFor(data, nullptr), {.metadata = metadata}).get(),
                is_refused);
    EXPECT_THAT(client.Health({}, {.metadata = metadata}), is_refused);
  }
  const Metadata any = {{"x-bin", std::string("\0\n", 2)}, {"x", ""}};
  EXPECT_TRUE(client.Rotate(RequestFor(data, nullptr), {.metadata = any}).ok());
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

}  // namespace
}  // namespace rope::client
