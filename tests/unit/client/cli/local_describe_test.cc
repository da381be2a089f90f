#include "client/cli/local_describe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace rope::client {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::SizeIs;

Result<DescribeReply> DescribeText(const std::string& config_json) {
  return DescribeHere({.rope = {.config_json = config_json}});
}

TEST(LocalDescribeTest, PresetIsDescribedWithItsPairing) {
  EXPECT_TRUE(IsPreset("llama-3.1-8b"));
  EXPECT_FALSE(IsPreset("llama-3.1-8"));
  const auto reply = DescribeHere({.rope = {.model = "llama-3.1-8b"}, .positions = {0, 7}});
  ASSERT_TRUE(reply.ok()) << reply.status().ToString();
  EXPECT_EQ(reply->config.rope_type, "llama3");
  EXPECT_EQ(reply->config.rope_theta, 500000);
  EXPECT_EQ(reply->pairing, Pairing::kHalf);
  EXPECT_THAT(reply->inv_freq, SizeIs(64));
  EXPECT_THAT(reply->scaling, Contains(FrequencyScaling::kBlended));
  EXPECT_EQ(reply->seq_len, 8);
  ASSERT_THAT(reply->rows, SizeIs(2));
  EXPECT_DOUBLE_EQ(reply->rows[1].cos[0], std::cos(7.0));
  EXPECT_EQ(reply->config_id, "");
}

TEST(LocalDescribeTest, CompatPairingAndPrecisionOfTheSpecCount) {
  const std::string config = R"({"model_type": "llama", "head_dim": 64,
    "max_position_embeddings": 131072, "rope_scaling": {"rope_type": "yarn", "factor": 4,
    "original_max_position_embeddings": 32768, "attention_factor": 2}})";
  const auto stated = DescribeText(config);
  ASSERT_TRUE(stated.ok()) << stated.status().ToString();
  EXPECT_EQ(stated->attention_factor, 2);
  const auto other = DescribeHere({.rope = {.config_json = config,
                                            .pairing = Pairing::kInterleaved,
                                            .compat = Compat::kLlamacpp,
                                            .precision = Precision::kHf}});
  ASSERT_TRUE(other.ok()) << other.status().ToString();
  EXPECT_NE(other->attention_factor, 2);
  EXPECT_EQ(other->pairing, Pairing::kInterleaved);
  EXPECT_EQ(other->precision, Precision::kHf);
  EXPECT_THAT(other->warnings, Contains(HasSubstr("pairing: taken as interleaved")));
}

TEST(LocalDescribeTest, BadRequestsAreRefusedByTheNameOfTheirField) {
  const RopeSpec plain = {.config_json = R"({"head_dim": 64})"};
  const std::pair<DescribeRequest, const char*> cases[] = {
      {{.rope = {.config_json = "{"}}, "config_json: got a syntax error"},
      {{.rope = {.config_json = R"({"head_dim": 64, "rope_theta": -1})"}}, "rope_theta: got -1"},
      {{.rope = {.config_json = "{\"rope_theta\": 1e4}"}}, "head_dim: got"},
      {{.rope = plain, .seq_len = 0}, "seq_len: got 0"},
      {{.rope = plain, .positions = {-1}}, "positions: got -1"},
      {{.rope = plain, .positions = {(int64_t{1} << 30) + 1}}, "positions: got 1073741825"},
      {{.rope = plain, .head_dim = 32}, "head_dim: got 32, want the config's 64"},
      {{.rope = {.config_json = R"({"head_dim": 64})", .layer_type = "x"}}, "layer_type: got"},
      {{.rope = {.config_json = "{}", .sub_config = "x"}}, "sub_config: got"},
      {{.rope = plain, .sinusoidal = true}, "pairing: got nothing"},
  };
  for (const auto& [request, message] : cases) {
    const auto reply = DescribeHere(request);
    ASSERT_FALSE(reply.ok()) << message;
    EXPECT_EQ(reply.status().code(), StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(reply.status().message(), HasSubstr(message));
  }
}

}  // namespace
}  // namespace rope::client
