// Requests that no client encodes, and compressed ones, are refused, and the server keeps serving.
// Other refusals are cases (tests/conformance/cases).
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/matchers.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

class BadInputTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = std::make_unique<TestServer>(); }
  static void TearDownTestSuite() { server_.reset(); }

  // Sends bytes that no generated encoder produces.
  grpc::Status SendBytes(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    grpc::ByteBuffer reply;
    grpc::Status status;
    auto call = stub.PrepareUnaryCall(&context, "/rope.v1.RopeService/Rotate", request, &queue);
    call->StartCall();
    call->Finish(&reply, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    return status;
  }

  void Check(const grpc::Status& status, grpc::StatusCode code, const std::string& message) {
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), StartsWith(message));
    EXPECT_TRUE(Serves(*stub_));
  }

  static constexpr grpc::StatusCode kInvalid = grpc::StatusCode::INVALID_ARGUMENT;
  static constexpr grpc::StatusCode kUnimplemented = grpc::StatusCode::UNIMPLEMENTED;

  static std::unique_ptr<TestServer> server_;
  std::shared_ptr<grpc::Channel> channel_ = server_->NewChannel();
  std::unique_ptr<v1::RopeService::Stub> stub_ = v1::RopeService::NewStub(channel_);
};

std::unique_ptr<TestServer> BadInputTest::server_;

TEST_F(BadInputTest, CompressedRequestsAreRefusedAndClientsThatTakeSuchRepliesAreServed) {
  for (const grpc_compression_algorithm algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext context;
    context.set_compression_algorithm(algorithm);
    v1::RotateResponse response;
    Check(stub_->Rotate(&context, UnitRequest(1), &response), kUnimplemented,
          "Compression algorithm '");  // Check's own call offers to take gzip and deflate
  }
}

TEST_F(BadInputTest, GarbageBytes) {
  Check(SendBytes(""), kInvalid, "rope: got nothing, want exactly one of model");
  Check(SendBytes("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), kInvalid, "message: got");
  Check(SendBytes("\x0f\x0f\x0f"), kInvalid, "request_id: got wire type 7");
  std::mt19937 random(7);
  const std::string sample = UnitRequest(1).SerializeAsString();
  for (int i = 0; i < 300; ++i) {
    std::string bytes = sample;
    for (int n = 0; n < 3; ++n) bytes[random() % bytes.size()] = static_cast<char>(random());
    SendBytes(bytes);
  }
  EXPECT_TRUE(Serves(*stub_));
}

TEST_F(BadInputTest, InvalidUtf8) {
  std::string bytes = UnitRequest(1).SerializeAsString();
  bytes += std::string("\x0a\x02\xc3\x28", 4);
  Check(SendBytes(bytes), kInvalid, "request: got bytes that do not parse");
}

}  // namespace
}  // namespace rope::testing
