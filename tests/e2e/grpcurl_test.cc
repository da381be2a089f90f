// Commands that a user types with grpcurl. ROPE_GRPCURL names it; without it each test is skipped.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/support/matchers.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

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

TEST_F(GrpcurlTest, ListsTheServicesThroughReflection) {
  EXPECT_THAT(
      Run({server_.address(), "list"}),
      Exits(0, AllOf(HasSubstr("rope.v1.RopeService"), HasSubstr("grpc.health.v1.Health"))));
}

TEST_F(GrpcurlTest, DescribesTheServiceAndItsMessages) {
  EXPECT_THAT(Run({server_.address(), "describe", "rope.v1.RopeService"}),
              Exits(0, HasSubstr("rpc Rotate ( .rope.v1.RotateRequest )")));
  EXPECT_THAT(Run({server_.address(), "describe", "rope.v1.RotateRequest"}),
              Exits(0, HasSubstr("repeated .rope.v1.Tensor tensors = 15")));
}

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

}  // namespace
}  // namespace rope::testing
