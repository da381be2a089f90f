// The control plane as a client of any language sees it: models that come and go, warm-up,
// statistics.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using ::testing::HasSubstr;
using Stub = v1::RopeService::Stub;

class AdminTest : public ::testing::Test {
 protected:
  template <typename In, typename Out>
  grpc::Status Send(grpc::Status (Stub::*method)(grpc::ClientContext*, const In&, Out*),
                    const In& request, Out& response) {
    grpc::ClientContext context;
    return (stub_.get()->*method)(&context, request, &response);
  }
  grpc::Status Rotate(const v1::RotateRequest& request, v1::RotateResponse& response) {
    return Send(&Stub::Rotate, request, response);
  }
  grpc::Status Register(const std::string& name, double theta) {
    v1::RegisterModelRequest request;
    request.set_name(name);
    request.mutable_rope()->mutable_config()->set_rope_theta(theta);
    request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
    v1::RegisterModelResponse response;
    return Send(&Stub::RegisterModel, request, response);
  }
  grpc::Status Unregister(const std::string& name) {
    v1::UnregisterModelRequest request;
    request.set_name(name);
    v1::UnregisterModelResponse response;
    return Send(&Stub::UnregisterModel, request, response);
  }
  v1::TableCacheStatistics Statistics() {
    v1::GetTableCacheStatisticsResponse response;
    EXPECT_TRUE(
        Send(&Stub::GetTableCacheStatistics, v1::GetTableCacheStatisticsRequest(), response).ok());
    return response.table_cache();
  }
  bool IsRegistered(const std::string& name) {
    v1::ListModelsResponse response;
    EXPECT_TRUE(Send(&Stub::ListModels, v1::ListModelsRequest(), response).ok());
    for (const v1::Model& model : response.models()) {
      if (model.name() == name) return model.origin() == "registered";
    }
    return false;
  }

  TestServer server_;
  std::unique_ptr<Stub> stub_ = server_.NewStub();
};

v1::RotateRequest ByModel(const std::string& name, int64_t position) {
  v1::RotateRequest request = UnitRequest(position);
  request.mutable_rope()->Clear();
  request.mutable_rope()->set_model(name);
  return request;
}

TEST_F(AdminTest, RegisteredModelRotatesByNameUntilItIsUnregistered) {
  v1::RotateResponse response;
  EXPECT_EQ(Rotate(ByModel("mine", 1), response).error_code(), grpc::StatusCode::NOT_FOUND);
  ASSERT_TRUE(Register("mine", 10000).ok());
  EXPECT_TRUE(IsRegistered("mine"));
  const grpc::Status rotated = Rotate(ByModel("mine", 1), response);
  ASSERT_TRUE(rotated.ok()) << rotated.error_message();
  EXPECT_NEAR(response.tensors(0).array().numbers(0), std::cos(1.0), 1e-7);
  EXPECT_EQ(Register("mine", 5).error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_TRUE(Unregister("mine").ok());
  EXPECT_FALSE(IsRegistered("mine"));
  const grpc::Status gone = Rotate(ByModel("mine", 1), response);
  EXPECT_EQ(gone.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(gone.error_message(), HasSubstr("rope.model: got \"mine\""));
  EXPECT_EQ(Unregister("mine").error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(AdminTest, RefusalsSayWhy) {
  const grpc::Status preset = Unregister("llama-3-8b");
  EXPECT_EQ(preset.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(preset.error_message(), HasSubstr("name: got \"llama-3-8b\" of origin preset"));
  const grpc::Status bad_name = Register("a b", 10000);
  EXPECT_EQ(bad_name.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(bad_name.error_message(), HasSubstr("name: got \"a b\""));
  EXPECT_EQ(Register("mine", -1).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_FALSE(IsRegistered("mine"));
}

TEST_F(AdminTest, RotationAfterAWarmUpFindsAllItsPages) {
  v1::WarmUpRequest request;
  request.mutable_rope()->set_model("llama-3-8b");
  request.set_begin(1000);
  request.set_end(5000);
  v1::WarmUpResponse warmed;
  const grpc::Status status = Send(&Stub::WarmUp, request, warmed);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(warmed.pages(), 4999 / 64 - 1000 / 64 + 1);
  EXPECT_EQ(warmed.bytes(), warmed.pages() * 64 * 128 * 4);
  const v1::TableCacheStatistics before = Statistics();
  EXPECT_EQ(before.builds(), warmed.pages());
  EXPECT_EQ(before.pages(), warmed.pages());
  EXPECT_GE(before.bytes(), warmed.bytes());

  v1::RotateRequest rotate = ByModel("llama-3-8b", 1000);
  v1::Array& array = *rotate.mutable_tensors(0)->mutable_array();
  array.clear_numbers();
  array.clear_shape();
  for (const int64_t length : {4000, 1, 128}) array.add_shape(length);
  array.set_raw(std::string(size_t{4000} * 128 * 4, '\0'));
  v1::RotateResponse response;
  const grpc::Status rotated = Rotate(rotate, response);
  ASSERT_TRUE(rotated.ok()) << rotated.error_message();
  const v1::TableCacheStatistics after = Statistics();
  EXPECT_EQ(after.misses(), before.misses());
  EXPECT_EQ(after.hits(), before.hits() + warmed.pages());
  EXPECT_EQ(after.builds(), before.builds());
}

TEST_F(AdminTest, WarmUpThatDoesNotFitIsRefusedAndBuildsNothing) {
  v1::WarmUpRequest request;
  request.mutable_rope()->set_model("llama-3-8b");
  request.set_end(int64_t{1} << 30);
  v1::WarmUpResponse response;
  const grpc::Status status = Send(&Stub::WarmUp, request, response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("want at most"));
  EXPECT_EQ(Statistics().builds(), 0);
}

TEST_F(AdminTest, WarmUpThatItsCallerLeavesHoldsUpNobody) {
  v1::WarmUpRequest request;
  request.mutable_rope()->set_model("llama-3-8b");
  request.set_end(300000);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(1));
  v1::WarmUpResponse response;
  EXPECT_EQ(stub_->WarmUp(&context, request, &response).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Serves(*stub_));
  request.set_end(64);
  EXPECT_TRUE(Send(&Stub::WarmUp, request, response).ok());
}

}  // namespace
}  // namespace rope::testing
