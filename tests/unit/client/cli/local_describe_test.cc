#include "client/cli/local_describe.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/status_matchers.h"

namespace rope::client {
namespace {

// Of a config whose layers are equal.
Result<DescribeReply> DescribeOne(const DescribeRequest& request) {
  const auto replies = DescribeHere(request);
  if (!replies.ok()) return replies.status();
  EXPECT_THAT(*replies, SizeIs(1));
  return replies->front();
}

Result<DescribeReply> DescribeText(const std::string& config_json) {
  return DescribeOne({.rope = {.config_json = config_json}});
}

TEST(LocalDescribeTest, PresetIsDescribedWithItsPairing) {
  ASSERT_OK(reply, DescribeOne({.rope = {.model = "llama-3.1-8b"}, .positions = {0, 7}}));
  EXPECT_EQ(reply->config.rope_type, RopeType::kLlama3);
  EXPECT_EQ(reply->config.rope_theta, 500000);
  EXPECT_EQ(reply->pairing, Pairing::kHalf);
  EXPECT_THAT(reply->inv_freq, SizeIs(64));
  EXPECT_THAT(reply->scaling, Contains(FrequencyScaling::kBlended));
  EXPECT_EQ(reply->seq_len, 8);
  ASSERT_THAT(reply->rows, SizeIs(2));
  EXPECT_DOUBLE_EQ(reply->rows[1].cos[0], std::cos(7.0));
}

TEST(LocalDescribeTest, LayerTypesAreDescribedOneByOneUnlessOneIsChosen) {
  ASSERT_OK(both, DescribeHere({.rope = {.model = "gemma-3-4b"}}));
  ASSERT_THAT(*both, SizeIs(2));
  EXPECT_EQ((*both)[0].layer_type, "full_attention");
  EXPECT_EQ((*both)[0].config.rope_theta, 1e6);
  EXPECT_EQ((*both)[1].layer_type, "sliding_attention");
  EXPECT_EQ((*both)[1].config.rope_theta, 1e4);
  EXPECT_NE((*both)[0].config_id, (*both)[1].config_id);
  const auto by_type =
      DescribeOne({.rope = {.model = "gemma-3-4b", .layer_type = "sliding_attention"}});
  const auto by_index = DescribeOne({.rope = {.model = "gemma-3-4b", .layer = 0}});
  for (const auto& one : {by_type, by_index}) {
    ASSERT_TRUE(one.ok()) << one.status().ToString();
    EXPECT_EQ(one->config_id, (*both)[1].config_id);
  }
}

TEST(LocalDescribeTest, UnknownPresetNamesTheNearest) {
  EXPECT_EQ(
      UnknownPreset("mistral-7b").message(),
      "--model: got \"mistral-7b\", want a preset of this program; --target asks a server for "
      "others; did you mean mistral-7b-v0.1 or mistral-7b-v0.3?");
  EXPECT_THAT(UnknownPreset("Kimi-K3").message(), EndsWith("for others"));
  EXPECT_THAT(UnknownPreset("nothing like it at all").message(), EndsWith("for others"));
}

TEST(LocalDescribeTest, CompatPairingAndPrecisionOfTheSpecCount) {
  const std::string config = R"({"model_type": "llama", "head_dim": 64,
    "max_position_embeddings": 131072, "rope_scaling": {"rope_type": "yarn", "factor": 4,
    "original_max_position_embeddings": 32768, "attention_factor": 2}})";
  ASSERT_OK(stated, DescribeText(config));
  EXPECT_EQ(stated->attention_factor, 2);
  ASSERT_OK(other, DescribeOne({.rope = {.config_json = config,
                                         .pairing = Pairing::kInterleaved,
                                         .compat = Compat::kLlamacpp,
                                         .precision = Precision::kHf}}));
  EXPECT_NE(other->attention_factor, 2);
  EXPECT_EQ(other->pairing, Pairing::kInterleaved);
  EXPECT_EQ(other->config.precision, Precision::kHf);
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
    const auto reply = DescribeOne(request);
    ASSERT_FALSE(reply.ok()) << message;
    EXPECT_EQ(reply.status().code(), StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(reply.status().message(), HasSubstr(message));
  }
}

}  // namespace
}  // namespace rope::client
