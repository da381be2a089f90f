// A program with another generated copy of grpc.health.v1, linked with every object of the client
// library and of the schema. If one of them had a copy too, the program would not link, or would
// end before main: a descriptor pool takes each name once.
#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "health.grpc.pb.h"
#include "rope/client.h"
#include "tests/support/status_matchers.h"

namespace rope::client {
namespace {

using ::google::protobuf::DescriptorPool;
using ::grpc::health::v1::HealthCheckRequest;
using ::grpc::health::v1::HealthCheckResponse;

class OtherHealth : public grpc::health::v1::Health::Service {
 public:
  grpc::Status Check(grpc::ServerContext*, const HealthCheckRequest* request,
                     HealthCheckResponse* response) override {
    if (request->service() == "draining") {
      response->set_status(HealthCheckResponse::NOT_SERVING);
    } else if (request->service().empty()) {
      response->set_status(HealthCheckResponse::SERVING);
    } else {
      return {grpc::StatusCode::NOT_FOUND, "service: got " + request->service()};
    }
    return grpc::Status::OK;
  }
};

TEST(OtherHealthTest, OnlyHealthSchemaIsTheOneOfTheProgram) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  EXPECT_EQ(HealthCheckRequest::descriptor()->file()->name(), "health.proto");
  EXPECT_EQ(pool.FindFileByName("grpc/health/v1/health.proto"), nullptr);
  EXPECT_NE(pool.FindFileByName("rope/v1/rope_service.proto"), nullptr);
}

TEST(OtherHealthTest, ClientReadsTheAnswersOfTheOtherCopy) {
  OtherHealth health;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&health);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);

  ASSERT_OK(client, Client::Connect("127.0.0.1:" + std::to_string(port)));
  EXPECT_EQ(*client->Health(), ServingStatus::kServing);
  EXPECT_EQ(*client->Health("draining"), ServingStatus::kNotServing);
  EXPECT_EQ(client->Health("nobody").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace rope::client
