#include "rope/client.h"

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

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
RotateRequest RequestFor(const std::vector<float>& data) {
  RotateRequest request;
  request.rope.model = "m";
  request.positions.start = 0;
  request.tensors = {{.role = Role::kQ,
                      .layout = "TD",
                      .dtype = DType::kFloat32,
                      .shape = {static_cast<int64_t>(data.size()) / 2, 2},
                      .data = data.data()}};
  return request;
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

TEST(ConnectTest, NobodyListeningIsUnavailable) {
  EXPECT_THAT(Client::Connect("unix:/nonexistent/rope.sock", {.timeout = milliseconds(100)}),
              StatusIs(StatusCode::kUnavailable, HasSubstr("unix:/nonexistent/rope.sock: ")));
}

TEST(ConnectTest, NoTargetIsRefused) {
  EXPECT_EQ(Client::Connect("").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace rope::client
