#include "server/grpc/health.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "tests/support/test_clients.h"

namespace rope::server {
namespace {

using ::grpc::health::v1::HealthCheckRequest;
using ::grpc::health::v1::HealthCheckResponse;
using Stub = ::grpc::health::v1::Health::Stub;

// A gRPC server in this process that serves only the health service.
class HealthTest : public ::testing::Test {
 protected:
  HealthTest() : health_({"known"}, {&in_flight_, &clients_.connections, &reads_}) {
    grpc::ServerBuilder builder;
    builder.RegisterService(&health_.service());
    loop_ = std::make_unique<PollLoop>(builder, 1, absl::ZeroDuration());
    server_ = builder.BuildAndStart();
    for (const auto& queue : loop_->queues()) health_.Arm(*queue);
    loop_->Start();
    stub_ = grpc::health::v1::Health::NewStub(server_->InProcessChannel({}));
  }
  ~HealthTest() override {
    health_.Shutdown();
    server_->Shutdown();
    in_flight_.AwaitNoneOpen();
    loop_->Shutdown();
  }

  static void Bound(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  }

  grpc::Status Check(const std::string& service, HealthCheckResponse& response) {
    grpc::ClientContext context;
    Bound(context);
    HealthCheckRequest request;
    request.set_service(service);
    return stub_->Check(&context, request, &response);
  }

  std::unique_ptr<grpc::ClientReader<HealthCheckResponse>> Watch(grpc::ClientContext& context,
                                                                 const std::string& service) {
    Bound(context);
    HealthCheckRequest request;
    request.set_service(service);
    return stub_->Watch(&context, request);
  }

  static HealthCheckResponse::ServingStatus Next(grpc::ClientReader<HealthCheckResponse>& reader) {
    HealthCheckResponse response;
    return reader.Read(&response) ? response.status() : HealthCheckResponse::UNKNOWN;
  }

  const SteadyClock clock_;
  CallsInFlight in_flight_;
  MessageReads reads_{clock_};
  testing::TestClients clients_;
  Health health_;
  std::unique_ptr<PollLoop> loop_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Stub> stub_;
};

TEST_F(HealthTest, CheckFollowsTheServer) {
  for (const char* service : {"", "known"}) {
    for (const bool serving : {false, true}) {
      health_.SetServing(serving);
      HealthCheckResponse response;
      ASSERT_TRUE(Check(service, response).ok());
      EXPECT_EQ(response.status(),
                serving ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING);
    }
  }
}

TEST_F(HealthTest, CheckOfAnUnknownServiceIsNotFound) {
  HealthCheckResponse response;
  EXPECT_EQ(Check("other", response).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(HealthTest, WatchTellsEachChangeAndEndsWithTheServer) {
  grpc::ClientContext context;
  const auto reader = Watch(context, "known");
  EXPECT_EQ(Next(*reader), HealthCheckResponse::NOT_SERVING);
  health_.SetServing(true);
  EXPECT_EQ(Next(*reader), HealthCheckResponse::SERVING);
  health_.SetServing(true);  // no change, no message
  health_.SetServing(false);
  EXPECT_EQ(Next(*reader), HealthCheckResponse::NOT_SERVING);
  health_.Shutdown();
  EXPECT_EQ(Next(*reader), HealthCheckResponse::UNKNOWN);
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(HealthTest, LongNamesAreRefused) {
  const std::string name(2000, 'x');
  HealthCheckResponse response;
  EXPECT_EQ(Check(name, response).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  grpc::ClientContext context;
  const auto reader = Watch(context, name);
  EXPECT_EQ(Next(*reader), HealthCheckResponse::UNKNOWN);
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(HealthTest, WatchOfAnUnknownServiceStaysOpen) {
  grpc::ClientContext context;
  const auto reader = Watch(context, "other");
  EXPECT_EQ(Next(*reader), HealthCheckResponse::SERVICE_UNKNOWN);
  context.TryCancel();
  EXPECT_EQ(Next(*reader), HealthCheckResponse::UNKNOWN);
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(HealthTest, WatcherThatLeavesHurtsNobody) {
  {
    grpc::ClientContext context;
    const auto reader = Watch(context, "");
    EXPECT_EQ(Next(*reader), HealthCheckResponse::NOT_SERVING);
    context.TryCancel();
    reader->Finish();
  }
  health_.SetServing(true);
  HealthCheckResponse response;
  ASSERT_TRUE(Check("", response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
}

}  // namespace
}  // namespace rope::server
