#include "kernels/describe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "kernels/config/config_json.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

using ::testing::DoubleNear;

// A layer of `config` as it is written, in half pairing.
LayerRope Written(const RopeConfig& config, Compat compat = Compat::kDefault) {
  LayerConfig layer;
  layer.config = config;
  return ReadLayer(layer, Pairing::kHalf, compat).value();
}

absl::StatusOr<DescribeReply> DescribeWritten(const RopeConfig& config,
                                              const DescribeOptions& options = {}) {
  const LayerRope rope = Written(config);
  return Describe(rope, Resolve(rope.layer.config).value().get(), options);
}

RopeConfig Yarn() {
  RopeConfig config;
  config.rope_type = RopeType::kYarn;
  config.head_dim = 64;
  config.factor = 4;
  config.max_position_embeddings = 131072;
  config.original_max_position_embeddings = 32768;
  return config;
}

TEST(DescribeTest, NumbersOfTheFormula) {
  ASSERT_OK(description, DescribeWritten({.head_dim = 8, .max_position_embeddings = 4096}));
  ASSERT_THAT(description->inv_freq, SizeIs(4));
  for (size_t i = 0; i < 4; ++i) {
    const double expected = std::pow(10000.0, -2.0 * static_cast<double>(i) / 8);
    EXPECT_THAT(description->inv_freq[i], DoubleNear(expected, expected * 1e-15));
    EXPECT_THAT(description->wavelengths[i] * expected, DoubleNear(2 * std::numbers::pi, 1e-14));
  }
  EXPECT_EQ(description->attention_factor, 1);
  EXPECT_EQ(description->seq_len, 1);
  EXPECT_FALSE(description->depends_on_seq_len);
  EXPECT_EQ(description->float32_angle_position, 4095);
  EXPECT_EQ(description->config.rotary_dim, 8);
  EXPECT_FALSE(description->ramp.has_value());
  EXPECT_THAT(description->readings, IsEmpty());
}

TEST(DescribeTest, RampScalingAndReadingsOfYarn) {
  RopeConfig config = Yarn();
  config.truncate = false;
  ASSERT_OK(description, DescribeWritten(config));
  EXPECT_EQ(description->scaling.front(), FrequencyScaling::kKept);
  EXPECT_EQ(description->scaling.back(), FrequencyScaling::kScaled);
  EXPECT_THAT(description->scaling, Contains(FrequencyScaling::kBlended));
  ASSERT_TRUE(description->ramp.has_value());
  EXPECT_LT(description->ramp->low_index, description->ramp->high_index);
  EXPECT_THAT(description->attention_factor, DoubleNear(0.1 * std::log(4.0) + 1, 1e-15));
  EXPECT_THAT(description->warnings, IsEmpty());
  EXPECT_FALSE(description->readings.empty());
}

TEST(DescribeTest, SinusoidsOfAnEmbeddingThatHasNoneAreRefused) {
  const DescribeOptions options = {.sinusoidal = true};
  EXPECT_THAT(DescribeWritten(Yarn(), options),
              IsInvalid("sinusoidal: got it with attention factor 1.1"));
  LayerRope rope = Written({.head_dim = 4});
  rope.pairing.reset();
  EXPECT_THAT(Describe(rope, Resolve(rope.layer.config).value().get(), options),
              IsInvalid("pairing: got nothing"));
}

TEST(DescribeTest, LengthIsTheGivenOneElseThatOfTheLargestPosition) {
  const std::vector<int64_t> positions = {7, 99, 3};
  EXPECT_EQ(SeqLenOf({}), 1);
  EXPECT_EQ(SeqLenOf({.positions = positions}), 100);
  EXPECT_EQ(SeqLenOf({.seq_len = 8, .positions = positions}), 8);
}

TEST(ReadLayerTest, RepliesWarnOfMistakesAndNotOfNotes) {
  LayerConfig layer;
  layer.config = Yarn();
  layer.remarks = {{RemarkKind::kDefaultAssumed, "rope_theta absent"},
                   {RemarkKind::kNearMissKey, "did you mean rope_scaling?"},
                   {RemarkKind::kUnrotatedLayers, "some layers do not rotate"}};
  ASSERT_OK(rope, ReadLayer(layer, std::nullopt, Compat::kDefault));
  EXPECT_THAT(rope->warnings, ElementsAre("did you mean rope_scaling?"));
  EXPECT_THAT(RemarksOf(*rope), Contains(Field(&Remark::kind, RemarkKind::kRoundedRamp)));
  layer.rotates = false;
  EXPECT_THAT(ReadLayer(layer, std::nullopt, Compat::kDefault)->warnings,
              ElementsAre("did you mean rope_scaling?", "some layers do not rotate"));
}

TEST(ReadLayerTest, CompatChangesTheConfigAndKeepsTheStatedOne) {
  RopeConfig config = Yarn();
  config.attention_factor = 2;
  const LayerRope rope = Written(config, Compat::kLlamacpp);
  EXPECT_EQ(rope.stated, config);
  EXPECT_FALSE(rope.layer.config.attention_factor.has_value());
  EXPECT_THAT(rope.warnings, Contains(HasSubstr("llama.cpp ignores attention_factor")));
  LayerConfig no_factor;
  no_factor.config = Yarn();
  no_factor.config.factor.reset();
  EXPECT_THAT(ReadLayer(no_factor, std::nullopt, Compat::kVllm), IsInvalid("yarn without factor"));
}

TEST(Float32AngleErrorTest, GrowsWithThePosition) {
  ASSERT_OK(rope, Resolve({.rope_theta = 500000, .head_dim = 128}));
  const auto evaluated = (*rope)->Evaluate(1);
  EXPECT_LT(Float32AngleError(evaluated, 0), 1e-15);
  EXPECT_GT(Float32AngleError(evaluated, 131071), 1e-3);
  EXPECT_LT(Float32AngleError(evaluated, 131071), 1e-2);
  EXPECT_GT(Float32AngleError(evaluated, 10485759), 0.1);
  EXPECT_LE(Float32AngleError(evaluated, int64_t{1} << 31), 2);
}

}  // namespace
}  // namespace rope::kernels
