// Server reflection as a tool uses it that lacks our schema. No package has the headers of gRPC's
// plugin, so requests are written by hand.
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "tests/support/byte_buffer.h"
#include "tests/support/matchers.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

// Fields of ServerReflectionRequest.
constexpr int kFileContainingSymbol = 4;
constexpr int kListServices = 7;

// The bytes of the answer to a request with one field; empty for an error, which goes to `status`.
std::string Ask(const TestServer& server, int field, const std::string& value,
                grpc::Status& status) {
  const std::string message = {static_cast<char>(field << 3 | 2), static_cast<char>(value.size())};
  const grpc::Slice slice(message + value);
  grpc::GenericStub stub(server.NewChannel());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  grpc::CompletionQueue queue;
  grpc::ByteBuffer reply;
  const auto call = stub.PrepareUnaryCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
      grpc::ByteBuffer(&slice, 1), &queue);
  call->StartCall();
  call->Finish(&reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  EXPECT_TRUE(queue.Next(&tag, &ok));
  return status.ok() ? BytesOf(reply) : "";
}

TEST(ReflectionTest, ListsTheServicesAndDescribesThemAndTheDetailsOfErrors) {
  TestServer server;
  grpc::Status status;
  EXPECT_THAT(Ask(server, kListServices, "*", status),
              AllOf(HasSubstr("rope.v1.RopeService"), HasSubstr("grpc.health.v1.Health"),
                    HasSubstr("grpc.reflection.v1alpha.ServerReflection")));
  EXPECT_THAT(Ask(server, kFileContainingSymbol, "rope.v1.RopeService", status),
              AllOf(HasSubstr("rope/v1/rotate.proto"), HasSubstr("RotateStream")));
  for (const char* name : {"ErrorInfo", "BadRequest", "RetryInfo"}) {
    EXPECT_THAT(Ask(server, kFileContainingSymbol, std::string("google.rpc.") + name, status),
                HasSubstr("google/rpc/error_details.proto"));
  }
  EXPECT_TRUE(Serves(*server.NewStub()));
}

TEST(ReflectionTest, IsNoMethodOfAServerWithoutIt) {
  TestServer server({"--enable_reflection=false"});
  grpc::Status status;
  EXPECT_EQ(Ask(server, kListServices, "*", status), "");
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(status.error_message(),
              HasSubstr("want a method of rope.v1.RopeService, grpc.health.v1.Health"));
}

}  // namespace
}  // namespace rope::testing
