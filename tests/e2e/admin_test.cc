// The control plane as a client in any language uses it: registering and removing models.
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

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
  ASSERT_TRUE(RegisterModel(*stub_, "mine", 10000).ok());
  EXPECT_TRUE(IsRegistered("mine"));
  const grpc::Status rotated = Rotate(ByModel("mine", 1), response);
  ASSERT_TRUE(rotated.ok()) << rotated.error_message();
  EXPECT_NEAR(response.tensors(0).array().numbers(0), std::cos(1.0), 1e-7);
  EXPECT_EQ(RegisterModel(*stub_, "mine", 5).error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_TRUE(UnregisterModel(*stub_, "mine").ok());
  EXPECT_FALSE(IsRegistered("mine"));
  const grpc::Status gone = Rotate(ByModel("mine", 1), response);
  EXPECT_EQ(gone.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(gone.error_message(), HasSubstr("rope.model: got \"mine\""));
  EXPECT_EQ(UnregisterModel(*stub_, "mine").error_code(), grpc::StatusCode::NOT_FOUND);
}

// The owner of a registered model, with the listener for shared memory and without it.
class ModelOwnerTest : public ::testing::TestWithParam<bool> {
 protected:
  static void ExpectDenied(const grpc::Status& status, const std::string& name) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::PERMISSION_DENIED);
    EXPECT_THAT(status.error_message(),
                HasSubstr("name: got \"" + name + "\", which belongs to another client"));
    EXPECT_THAT(status.error_message(), Not(AnyOf(HasSubstr("uid"), HasSubstr("127.0.0.1"))));
  }
  static bool Rotates(Stub& stub, const std::string& name) {
    grpc::ClientContext context;
    v1::RotateResponse response;
    return stub.Rotate(&context, ByModel(name, 1), &response).ok();
  }
  std::unique_ptr<Stub> NewUnixStub() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return v1::RopeService::NewStub(
        grpc::CreateCustomChannel("unix:" + path_, grpc::InsecureChannelCredentials(), arguments));
  }

  const std::string path_ = TemporaryFolder() + "/s";
  TestServer server_{
      GetParam() ? std::vector<std::string>{"--listen=unix:" + path_, "--enable_shared_memory"}
                 : std::vector<std::string>{"--listen=unix:" + path_}};
};

TEST_P(ModelOwnerTest, ConnectionsOfOneUserShareTheirModels) {
  const auto first = NewUnixStub();
  const auto second = NewUnixStub();
  ASSERT_TRUE(RegisterModel(*first, "mine").ok());
  EXPECT_EQ(RegisterModel(*second, "mine").error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_TRUE(Rotates(*second, "mine"));
  EXPECT_TRUE(UnregisterModel(*second, "mine").ok());
  EXPECT_TRUE(RegisterModel(*second, "mine").ok());
}

TEST_P(ModelOwnerTest, OthersRotateWithAModelAndCannotRemoveIt) {
  const auto by_unix = NewUnixStub();
  const auto by_tcp = server_.NewStub();
  ASSERT_TRUE(RegisterModel(*by_unix, "of-unix").ok());
  ASSERT_TRUE(RegisterModel(*by_tcp, "of-tcp").ok());
  ExpectDenied(UnregisterModel(*by_tcp, "of-unix"), "of-unix");
  ExpectDenied(UnregisterModel(*by_unix, "of-tcp"), "of-tcp");
  EXPECT_EQ(RegisterModel(*by_tcp, "of-unix").error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_TRUE(Rotates(*by_tcp, "of-unix"));
  EXPECT_TRUE(Rotates(*by_unix, "of-tcp"));
  EXPECT_TRUE(UnregisterModel(*server_.NewStub(), "of-tcp").ok())
      << "another connection of its address";
  EXPECT_TRUE(UnregisterModel(*by_unix, "of-unix").ok());
}

TEST_P(ModelOwnerTest, OneOwnerLeavesPlacesForOthers) {
  const auto by_unix = NewUnixStub();
  grpc::Status last;
  int registered = 0;
  for (; registered < 2000; ++registered) {
    last = RegisterModel(*by_unix, "model" + std::to_string(registered));
    if (!last.ok()) break;
  }
  EXPECT_EQ(registered, 512);
  EXPECT_EQ(last.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(last.error_message(), HasSubstr("number 513 of this client, want at most 512"));
  EXPECT_TRUE(RegisterModel(*server_.NewStub(), "another").ok());
  EXPECT_TRUE(UnregisterModel(*by_unix, "model7").ok());
  EXPECT_TRUE(RegisterModel(*by_unix, "again").ok());
}

INSTANTIATE_TEST_SUITE_P(SharedMemory, ModelOwnerTest, ::testing::Bool(),
                         [](const auto& of) { return of.param ? "on" : "off"; });

}  // namespace
}  // namespace rope::testing
