// SIGTERM: not serving, finish what runs, exit 0.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/support/matchers.h"
#include "tests/support/metrics_page.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// 32 MiB: runs long enough for a signal to arrive in the middle.
v1::RotateRequest LargeRequest() {
  v1::RotateRequest request;
  request.mutable_rope()->set_model("llama-3.1-8b");
  request.mutable_positions()->set_start(0);
  v1::Tensor& tensor = *request.add_tensors();
  tensor.set_role(v1::ROLE_Q);
  tensor.set_layout("SHD");
  tensor.mutable_array()->set_dtype(v1::DTYPE_FP32);
  for (const int64_t length : {4096, 16, 128}) tensor.mutable_array()->add_shape(length);
  tensor.mutable_array()->set_raw(std::string(4096 * 16 * 128 * 4, '\0'));
  return request;
}

// The rotation of zeros gives zeros of either sign.
bool AllZero(const std::string& raw) {
  const auto* values = reinterpret_cast<const float*>(raw.data());
  return std::all_of(values, values + raw.size() / 4, [](float value) { return value == 0; });
}

TEST(DrainTest, SigtermOnAnIdleServerExitsZero) {
  for (const int signal : {SIGTERM, SIGINT}) {
    TestServer server;
    ASSERT_TRUE(Serves(*server.NewStub()));
    server.process().Signal(signal);
    EXPECT_EQ(server.process().Wait(), 0);
  }
}

TEST(DrainTest, WatchSeesNotServingThenTheStreamEnds) {
  TestServer server({"--drain_lead=1h"});
  const auto stub = Health::NewStub(server.NewChannel());
  grpc::ClientContext context;
  const auto watch = stub->Watch(&context, HealthCheckRequest());
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  server.process().Signal(SIGTERM);
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  // During the lead time the server still accepts calls; a second signal ends it.
  EXPECT_TRUE(Serves(*server.NewStub()));
  const auto drained_from = std::chrono::steady_clock::now();
  server.process().Signal(SIGTERM);
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  // The channel stays open and nothing polls it: the server must not wait for its GOAWAY
  // acknowledgement.
  EXPECT_EQ(server.process().Wait(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - drained_from, std::chrono::seconds(3));
}

TEST(DrainTest, ReadyzFollowsTheDrainFromItsFirstMoment) {
  TestServer server({"--drain_lead=1h", "--metrics_listen=127.0.0.1:0"});
  const int port = MetricsPort(server);
  EXPECT_THAT(Get("/readyz", port), StartsWith("HTTP/1.0 200 "));
  server.process().Signal(SIGTERM);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  std::string answer;
  do {
    answer = Get("/readyz", port);
  } while (!answer.starts_with("HTTP/1.0 503 ") && std::chrono::steady_clock::now() < deadline);
  EXPECT_THAT(answer, EndsWith("\r\n\r\nNOT_SERVING\n"));
  EXPECT_THAT(Get("/healthz", port), StartsWith("HTTP/1.0 503 "));
  EXPECT_THAT(Get("/livez", port), StartsWith("HTTP/1.0 200 "));
  EXPECT_TRUE(Serves(*server.NewStub())) << "during the lead time";
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().Wait(), 0);
}

TEST(DrainTest, RequestsInFlightAreAnsweredOrRefusedNeverLost) {
  TestServer server;
  constexpr int kClients = 4;
  const v1::RotateRequest request = LargeRequest();
  std::vector<grpc::Status> statuses(kClients);
  std::vector<v1::RotateResponse> responses(kClients);
  // The first answer starts the drain; the other requests are in flight. A second signal would cut
  // them.
  std::once_flag drain;
  std::vector<std::thread> clients;
  for (size_t i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      grpc::ClientContext context;
      statuses[i] = server.NewStub()->Rotate(&context, request, &responses[i]);
      std::call_once(drain, [&] { server.process().Signal(SIGTERM); });
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(server.process().Wait(), 0);
  int answered = 0;
  for (size_t i = 0; i < kClients; ++i) {
    if (statuses[i].ok()) {
      ++answered;
      const std::string& raw = responses[i].tensors(0).array().raw();
      EXPECT_TRUE(raw.size() == request.tensors(0).array().raw().size() && AllZero(raw));
    } else {
      EXPECT_EQ(statuses[i].error_code(), grpc::StatusCode::UNAVAILABLE)
          << statuses[i].error_message();
    }
  }
  EXPECT_GE(answered, 1);
}

TEST(DrainTest, UnixSocketFileIsRemoved) {
  const std::string path = TemporaryFolder() + "/rope.sock";
  TestServer server({"--listen=unix:" + path});
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().Wait(), 0);
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace rope::testing
