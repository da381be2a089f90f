// grpc.health.v1 as a standard health client uses it.
#include <gtest/gtest.h>

#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

TEST(HealthTest, CheckKnowsTheServerAndItsServiceAndNoOther) {
  TestServer server;
  const auto stub = Health::NewStub(server.NewChannel());
  for (const char* service : {"", "rope.v1.RopeService"}) {
    grpc::ClientContext context;
    HealthCheckRequest request;
    request.set_service(service);
    HealthCheckResponse response;
    ASSERT_TRUE(stub->Check(&context, request, &response).ok()) << service;
    EXPECT_EQ(response.status(), HealthCheckResponse::SERVING) << service;
  }
  grpc::ClientContext context;
  HealthCheckRequest request;
  request.set_service("no.such.Service");
  HealthCheckResponse response;
  EXPECT_EQ(stub->Check(&context, request, &response).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST(HealthTest, WatchOfAnUnknownServiceSaysSoAndStaysOpen) {
  TestServer server;
  const auto stub = Health::NewStub(server.NewChannel());
  grpc::ClientContext context;
  HealthCheckRequest request;
  request.set_service("no.such.Service");
  const auto watch = stub->Watch(&context, request);
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVICE_UNKNOWN);
  context.TryCancel();
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Serves(*server.NewStub()));
}

TEST(HealthTest, WatchesOfManyClientsThatComeAndGoLeaveTheServerServing) {
  TestServer server;
  for (int i = 0; i < 20; ++i) {
    const auto stub = Health::NewStub(server.NewChannel());
    grpc::ClientContext context;
    const auto watch = stub->Watch(&context, HealthCheckRequest());
    HealthCheckResponse response;
    ASSERT_TRUE(watch->Read(&response));
    EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
    context.TryCancel();
    watch->Finish();
  }
  EXPECT_TRUE(Serves(*server.NewStub()));
}

}  // namespace
}  // namespace rope::testing
