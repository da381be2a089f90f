#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/cli/arguments.h"
#include "client/cli/commands.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/client/fake_server.h"

namespace rope::client {
namespace {

// A case at position 0: the correct result equals the input, so the fake server's echo passes.
nlohmann::json IdentityCase() {
  return {{"format", "rope-golden-1"},
          {"config", {{"rope_theta", 10000}}},
          {"layer_type", "full_attention"},
          {"pairing", "interleaved"},
          {"head_dim", 2},
          {"rotary_dim", 2},
          {"num_heads", 1},
          {"num_kv_heads", 1},
          {"num_tokens", 1},
          {"seq_len", 77},
          {"attention_factor", 1.0},
          {"positions", {{0}, {0}, {0}}},
          {"q", {1.0, 2.0}},
          {"k", {3.0, 4.0}},
          {"q_out_f64", {1.0, 2.0}},
          {"k_out_f64", {3.0, 4.0}}};
}

std::string Written(const std::string& name, const std::string& text) {
  const std::string path = rope::testing::TemporaryFolder() + "/" + name + ".json";
  EXPECT_TRUE(WriteFile(path, text, "").ok());
  return path;
}

class VerifyTest : public ::testing::Test {
 protected:
  VerifyTest() { server_.OnRotate(&Echo); }

  // Returns the exit status; out_ has the output.
  int Verify(const std::vector<std::string>& paths) {
    const std::string target = "--target=" + server_.target();
    std::vector<absl::string_view> arguments = {"verify", target};
    arguments.insert(arguments.end(), paths.begin(), paths.end());
    ::testing::internal::CaptureStdout();
    const int exit_status = RunRopectl(arguments);
    out_ = ::testing::internal::GetCapturedStdout();
    return exit_status;
  }

  FakeServer server_;
  std::string out_;
};

TEST_F(VerifyTest, RightFileIsOk) {
  EXPECT_EQ(Verify({Written("right", IdentityCase().dump())}), kExitOk);
  EXPECT_EQ(out_, "right  fp32 0.0000  fp16 0.0000  bf16 0.0000   ok\n");
  EXPECT_EQ(server_.rotate_calls(), 3);
}

TEST_F(VerifyTest, FileIsSentAsItSays) {
  v1::RotateRequest sent;
  server_.OnRotate([&sent](grpc::CallbackServerContext& context, const std::string& request,
                           std::string& reply) {
    if (!sent.ParseFromString(request)) return grpc::Status::CANCELLED;
    return Echo(context, request, reply);
  });
  EXPECT_EQ(Verify({Written("sent", IdentityCase().dump())}), kExitOk);
  EXPECT_EQ(sent.rope().config_json(), R"({"rope_theta":10000})");
  EXPECT_EQ(sent.rope().layer_type(), "full_attention");
  EXPECT_EQ(sent.rope().pairing(), v1::PAIRING_INTERLEAVED);
  EXPECT_THAT(sent.positions().seq_lens(), ::testing::ElementsAre(77));
  EXPECT_THAT(sent.positions().position_ids().shape(), ::testing::ElementsAre(3, 1));
  ASSERT_EQ(sent.tensors_size(), 2);
  EXPECT_EQ(sent.tensors(1).role(), v1::ROLE_K);
  EXPECT_EQ(sent.tensors(1).layout(), "THD");
  EXPECT_THAT(sent.tensors(1).array().shape(), ::testing::ElementsAre(1, 1, 2));
}

TEST_F(VerifyTest, OneBadFileFailsAndTheOthersStillRun) {
  nlohmann::json wrong = IdentityCase();
  wrong["k_out_f64"][1] = 4.00001;
  EXPECT_EQ(Verify({Written("garbage", "{"), Written("wrong", wrong.dump()), "/nonexistent.json",
                    Written("right", IdentityCase().dump())}),
            kExitFailed);
  EXPECT_THAT(out_, AllOf(HasSubstr("FAIL got other text, want a JSON object"),
                          HasSubstr("FAIL fp32: k[0, 0, 1]: got 4, want 4.00001, tolerance"),
                          HasSubstr("FAIL /nonexistent.json: cannot be read"),
                          HasSubstr("bf16 0.0000   ok")));
}

TEST_F(VerifyTest, FailedCallFailsTheFile) {
  server_.OnRotate([](grpc::CallbackServerContext&, const std::string&, std::string&) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "no");
  });
  EXPECT_EQ(Verify({Written("right", IdentityCase().dump())}), kExitFailed);
  EXPECT_THAT(out_, HasSubstr("FAIL fp32: NOT_FOUND: no"));
}

}  // namespace
}  // namespace rope::client
