// Tools and languages that have no schema of ours: reflection, grpcurl, grpcio-status.
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/byte_buffer.h"
#include "tests/support/matchers.h"
#include "tests/support/process.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

// Server reflection as a tool uses it that lacks our schema. No package has the headers of gRPC's
// plugin, so requests are written by hand.

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

// Commands that a user types with grpcurl. ROPE_GRPCURL names it; without it each test is skipped.

class GrpcurlTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* program = std::getenv("ROPE_GRPCURL");
    if (program == nullptr || *program == '\0') {
      GTEST_SKIP() << "grpcurl is not here: set ROPE_GRPCURL to one";
    }
    program_ = program;
  }

  Outcome Run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {program_, "-plaintext"});
    return RunProgram(arguments);
  }

  Outcome Call(const std::string& method, const std::string& json) {
    return Run({"-d", json, server_.address(), method});
  }

  TestServer server_;
  std::string program_;
};

TEST_F(GrpcurlTest, TurnsOneZeroAtPositionOneIntoCosAndSin) {
  const Outcome outcome = Call("rope.v1.RopeService/Rotate", R"({
    "rope": {"config": {"head_dim": 2}, "pairing": "PAIRING_HALF"},
    "positions": {"position_ids": {"numbers": [1]}},
    "tensors": [{"role": "ROLE_Q", "layout": "SHD",
                 "array": {"dtype": "DTYPE_FP32", "shape": [1, 1, 2], "numbers": [1, 0]}}]})");
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  const auto reply = nlohmann::json::parse(outcome.output);
  const auto& numbers = reply["tensors"][0]["array"]["numbers"];
  ASSERT_EQ(numbers.size(), 2u);
  EXPECT_NEAR(numbers[0].get<double>(), std::cos(1.0), 1e-7);
  EXPECT_NEAR(numbers[1].get<double>(), std::sin(1.0), 1e-7);
}

TEST_F(GrpcurlTest, StreamsSeveralRequestsOneOfThemBad) {
  const auto request = [](const std::string& id, int position) {
    return nlohmann::json{
        {"request_id", id},
        {"rope", {{"config", {{"head_dim", 2}}}, {"pairing", "PAIRING_HALF"}}},
        {"positions", {{"position_ids", {{"numbers", {position}}}}}},
        {"tensors",
         {{{"role", "ROLE_Q"},
           {"layout", "SHD"},
           {"array", {{"dtype", "DTYPE_FP32"}, {"shape", {1, 1, 2}}, {"numbers", {1, 0}}}}}}}};
  };
  std::string three;
  for (const auto& [id, position] : std::map<std::string, int>{{"a", 1}, {"b", -1}, {"c", 2}}) {
    three +=
        nlohmann::json{{"sequence", three.size() + 1}, {"rotate", request(id, position)}}.dump();
  }
  ASSERT_THAT(Call("rope.v1.RopeService/RotateStream", three),
              Exits(0, AllOf(HasSubstr("\"request_id\": \"a\""), HasSubstr("\"request_id\": \"c\""),
                             HasSubstr("positions.position_ids: got -1"),
                             HasSubstr("0.5403022766113281"))));
}

TEST_F(GrpcurlTest, ShowsTheDetailsOfAnErrorInWords) {
  const Outcome outcome = Call("rope.v1.RopeService/Rotate", R"({"rope": {"model": "nobody"},
    "positions": {"start": 0}, "tensors": []})");
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("NotFound"));
  EXPECT_THAT(outcome.output, HasSubstr("rope.model: got \"nobody\""));
  EXPECT_THAT(outcome.output, Not(HasSubstr("is not recognized")));
  EXPECT_THAT(outcome.output, HasSubstr(R"("reason":"MODEL_NOT_FOUND")"));
  EXPECT_THAT(outcome.output, HasSubstr(R"("field_violations":[{"field":"rope.model",)"));
}

// Reflection has no comments; the descriptor set of the build has them.
TEST_F(GrpcurlTest, DescribesWithCommentsFromTheProtosetAndCallsWithIt) {
  const std::string protoset = ROPE_BINARY_DIR "/rope.protoset";
  const std::string comment = "// Position of the first token of each sequence: ";
  EXPECT_THAT(Run({server_.address(), "describe", "rope.v1.Positions"}),
              Exits(0, Not(HasSubstr(comment))));
  const Outcome read =
      RunProgram({program_, "-protoset", protoset, "describe", "rope.v1.Positions"});
  EXPECT_EQ(read.status, 0) << read.output;
  EXPECT_THAT(read.output, HasSubstr(comment));
  EXPECT_THAT(Run({"-protoset", protoset, "-d", R"({"rope": {"model": "llama-3.1-8b"}})",
                   server_.address(), "rope.v1.RopeService/Describe"}),
              Exits(0, HasSubstr("\"ropeType\": \"llama3\"")));
}

// A client of another language reads errors of a real server without our schema: Python with the
// packages grpcio-status and googleapis-common-protos. ROPE_GRPC_STATUS_PYTHON names a Python that
// has them.

TEST(StatusDetailsTest, PackagesOfGoogleRpcReadReasonFieldAndRetryDelay) {
  const char* const python = std::getenv("ROPE_GRPC_STATUS_PYTHON");
  if (python == nullptr || *python == '\0') {
    GTEST_SKIP() << "the package grpcio-status is not here: set ROPE_GRPC_STATUS_PYTHON to a "
                    "Python that has it";
  }
  const TestServer server;
  EXPECT_THAT(
      RunProgram(
          {python, "-B", ROPE_SOURCE_DIR "/tests/peers/status_details.py", server.address()}),
      Exits(0, MatchesRegex("rope.v1 INVALID_ARGUMENT INVALID_FIELD field=rope "
                            "want=exactly one of model, config_id, config, config_json retry_ms=0\n"
                            "rope.v1 RESOURCE_EXHAUSTED QUEUE_FULL field=queue "
                            "want=at most [0-9]+ retry_ms=20\n")));
}

}  // namespace
}  // namespace rope::testing
