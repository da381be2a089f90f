// The server whose GPU is lost: over the fake CUDA driver, so it needs no GPU.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

class LostDeviceTest : public ::testing::Test {
 protected:
  explicit LostDeviceTest(std::vector<std::string> flags = {"--drain_lead=1h"})
      : server_(
            [&flags] {
              setenv("LD_LIBRARY_PATH", ROPE_BINARY_DIR "/tests/fake_cuda", 1);
              flags.insert(flags.end(), {"--device=cuda", "--threads=2"});
              return flags;
            }(),
            Process::Errors::kPipe),
        stub_(server_.NewStub()),
        health_(Health::NewStub(server_.NewChannel())) {}

  // The device that answers the unit request; empty: no answer, or a wrong one.
  std::string RunsOn() {
    grpc::ClientContext context;
    v1::RotateResponse response;
    const bool answered = stub_->Rotate(&context, UnitRequest(1), &response).ok();
    return answered && IsUnitAnswer(response) ? response.device() : "";
  }

  HealthCheckResponse::ServingStatus HealthOf(const std::string& service) {
    grpc::ClientContext context;
    HealthCheckRequest request;
    request.set_service(service);
    HealthCheckResponse response;
    EXPECT_TRUE(health_->Check(&context, request, &response).ok());
    return response.status();
  }

  // The signal reaches the process while requests run: the first to meet it fails.
  void LoseTheDevice() {
    server_.process().Signal(SIGUSR1);
    std::string device;
    do {
      device = RunsOn();
    } while (device == "cuda:0");
    EXPECT_EQ(device, "");
  }

  // Until then the server takes a SIGTERM for the first reason to stop: of two pending signals the
  // lower number is delivered first.
  void AwaitStopForTheLoss() {
    std::string line;
    do {
      line = server_.process().ReadErrorLine();
      ASSERT_FALSE(line.empty());
    } while (line.find("device lost: not serving") == std::string::npos);
  }

  TestServer server_;
  std::unique_ptr<v1::RopeService::Stub> stub_;
  std::unique_ptr<Health::Stub> health_;
};

TEST_F(LostDeviceTest, TheNamedDeviceTakesTheServerWithIt) {
  EXPECT_EQ(RunsOn(), "cuda:0");
  EXPECT_EQ(HealthOf("cuda:0"), HealthCheckResponse::SERVING);
  LoseTheDevice();
  EXPECT_EQ(HealthOf(""), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(HealthOf("cuda:0"), HealthCheckResponse::NOT_SERVING);
  AwaitStopForTheLoss();
  EXPECT_EQ(RunsOn(), "cpu") << "during the lead time calls still run";
  server_.process().Signal(SIGTERM);  // cuts the lead time short
  EXPECT_EQ(server_.process().Wait(), 3);
}

class LostDeviceWithoutLeadTest : public LostDeviceTest {
 protected:
  LostDeviceWithoutLeadTest() : LostDeviceTest({}) {}
};

TEST_F(LostDeviceWithoutLeadTest, NobodyHasToStopTheServer) {
  LoseTheDevice();
  EXPECT_EQ(server_.process().Wait(), 3);
}

TEST_F(LostDeviceWithoutLeadTest, AServerThatLostNothingExitsZero) {
  EXPECT_EQ(RunsOn(), "cuda:0");
  server_.process().Signal(SIGTERM);
  EXPECT_EQ(server_.process().Wait(), 0);
}

TEST_F(LostDeviceTest, ALossDuringTheDrainNeitherHurriesItNorChangesItsStatus) {
  grpc::ClientContext context;
  const auto watch = health_->Watch(&context, HealthCheckRequest());
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  server_.process().Signal(SIGTERM);
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  LoseTheDevice();
  EXPECT_EQ(RunsOn(), "cpu");
  context.TryCancel();
  server_.process().Signal(SIGTERM);
  EXPECT_EQ(server_.process().Wait(), 0);
}

}  // namespace
}  // namespace rope::testing
