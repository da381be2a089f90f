// Warnings() of kernels/compat/rope_warnings.h.
#include "kernels/compat/rope_warnings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/config/rope_config.h"
#include "kernels/config/validate_config.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

using ::rope::testing::IsOk;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> WarningsOf(const RopeConfig& config) {
  EXPECT_THAT(Validate(config), IsOk());
  return Warnings(config);
}

RopeConfig Yarn() {
  RopeConfig config = {.rope_type = RopeType::kYarn, .rope_theta = 150000, .head_dim = 64};
  config.factor = 32;
  config.original_max_position_embeddings = 4096;
  return config;
}

TEST(WarningsTest, PlainConfigHasNone) {
  EXPECT_THAT(WarningsOf({.head_dim = 64}), IsEmpty());
}

TEST(WarningsTest, FactorBelowOne) {
  RopeConfig config = {.rope_type = RopeType::kLinear, .head_dim = 64};
  config.factor = 0.5;
  EXPECT_THAT(WarningsOf(config),
              ElementsAre(HasSubstr("factor 0.5 is below 1: scaled frequencies turn 2 times")));
}

TEST(WarningsTest, EqualFrequencyFactors) {
  RopeConfig config = {.rope_type = RopeType::kLlama3, .head_dim = 64};
  config.factor = 16;
  config.low_freq_factor = 1;
  config.high_freq_factor = 1;
  config.original_max_position_embeddings = 8192;
  EXPECT_THAT(WarningsOf(config),
              ElementsAre(HasSubstr("high_freq_factor equals low_freq_factor, 1")));
  config.high_freq_factor = 4;
  EXPECT_THAT(WarningsOf(config), IsEmpty());
}

TEST(WarningsTest, FactorAgainstTheLengthRatio) {
  RopeConfig config = Yarn();
  config.truncate = true;
  config.max_position_embeddings = 131072;
  EXPECT_THAT(WarningsOf(config), IsEmpty());
  config.factor = 16;
  EXPECT_THAT(
      WarningsOf(config),
      ElementsAre(HasSubstr("factor 16 contradicts max_position_embeddings / "
                            "original_max_position_embeddings, 32; 16 is used (attention factor "
                            "1.27726; the ratio would give 1.34657)")));
}

TEST(WarningsTest, YarnFactorAbsent) {
  RopeConfig config = Yarn();
  config.factor.reset();
  config.max_position_embeddings = 131072;
  EXPECT_THAT(WarningsOf(config), Contains(HasSubstr("factor absent, taken as")));
}

TEST(WarningsTest, YarnOriginalLengthAbsent) {
  RopeConfig config = Yarn();
  config.original_max_position_embeddings.reset();
  config.max_position_embeddings = 131072;
  EXPECT_THAT(WarningsOf(config),
              Contains(HasSubstr("original_max_position_embeddings absent, taken as "
                                 "max_position_embeddings, 131072")));
}

TEST(WarningsTest, YarnTruncateAbsentSaysTheEdges) {
  EXPECT_THAT(WarningsOf(Yarn()),
              ElementsAre(HasSubstr("truncate absent, taken as true; the ramp runs between 8 and "
                                    "18 instead of 8.09278 and 17.398")));
}

TEST(WarningsTest, YarnTruncateFalse) {
  RopeConfig config = Yarn();
  config.truncate = false;
  EXPECT_THAT(WarningsOf(config), ElementsAre(HasSubstr("llama.cpp rounds anyway")));
}

TEST(WarningsTest, HeadDimOfTheTensorDecidesTheEdges) {
  RopeConfig config = Yarn();
  config.head_dim.reset();
  EXPECT_THAT(Warnings(config), IsEmpty());
  EXPECT_THAT(Warnings(config, 64), ElementsAre(HasSubstr("truncate absent")));
}

TEST(WarningsTest, MscaleAlone) {
  RopeConfig config = Yarn();
  config.factor = 40;
  config.truncate = true;
  config.mscale = 0.707;
  EXPECT_THAT(WarningsOf(config),
              ElementsAre(HasSubstr("mscale without mscale_all_dim is ignored, as Hugging Face "
                                    "does (attention factor 1.36889); DeepSeek-style code uses it "
                                    "with 1 as the denominator and gets 1.2608")));
  config.mscale_all_dim = 0.707;
  EXPECT_THAT(WarningsOf(config), IsEmpty());
}

TEST(WarningsTest, ExplicitAttentionFactorOfYarn) {
  RopeConfig config = Yarn();
  config.truncate = true;
  config.attention_factor = 1;
  EXPECT_THAT(
      WarningsOf(config),
      ElementsAre(HasSubstr(
          "attention_factor 1 replaces the computed one, 1.34657; vLLM up to 0.29.0 ignores it")));
}

TEST(WarningsTest, BetaZero) {
  RopeConfig config = Yarn();
  config.beta_fast = 0;
  EXPECT_THAT(WarningsOf(config), Contains(HasSubstr("beta_fast 0 is read as 32")));
}

TEST(WarningsTest, YarnWithMrope) {
  RopeConfig config = Yarn();
  config.mrope = Mrope{.section = {8, 12, 12}};
  EXPECT_THAT(WarningsOf(config), Contains(HasSubstr("vLLM up to 0.31.0 takes 16384")));
}

TEST(WarningsTest, DynamicSaysTheBaseOfOthers) {
  RopeConfig config = {.rope_type = RopeType::kDynamic, .head_dim = 128};
  config.factor = 4;
  config.max_position_embeddings = 4096;
  EXPECT_THAT(WarningsOf(config),
              ElementsAre(HasSubstr("vLLM up to 0.21.0 uses 135402 at every length")));
}

TEST(WarningsTest, ProportionalFactor) {
  RopeConfig config = {.rope_type = RopeType::kProportional, .head_dim = 64};
  config.factor = 2;
  EXPECT_THAT(WarningsOf(config), ElementsAre(HasSubstr("factor 2 divides every frequency")));
}

TEST(WarningsTest, SettingsOfAnotherType) {
  RopeConfig config = {.head_dim = 64};
  config.factor = 2;
  config.mscale = 1;
  EXPECT_THAT(WarningsOf(config), ElementsAre("factor has no effect for rope_type default",
                                              "mscale has no effect for rope_type default"));
}

TEST(WarningsTest, RotaryDimTruncatedOrContradicted) {
  RopeConfig config = {.head_dim = 100, .partial_rotary_factor = 0.57};
  EXPECT_THAT(WarningsOf(config), ElementsAre(HasSubstr("truncated to a rotary_dim of 56")));
  config.rotary_dim = 32;
  EXPECT_THAT(WarningsOf(config), ElementsAre(HasSubstr("rotary_dim 32 is used")));
}

TEST(WarningsTest, SettingsWithoutEffect) {
  RopeConfig config = {.head_dim = 64};
  config.ramp = YarnRamp::kTurns;
  config.attn_factor = 2;
  config.longrope_branch = LongropeBranch::kLong;
  config.alpha = 2;
  config.mixed_b = 0.5;
  config.seq_len_policy = SeqLenPolicy::kBatch;
  EXPECT_THAT(WarningsOf(config),
              ElementsAre("attn_factor has no effect for rope_type default",
                          "ramp has no effect for rope_type default",
                          "longrope_branch has no effect for rope_type default",
                          "alpha has no effect for rope_type default",
                          "mixed_b has no effect for rope_type default",
                          "seq_len_policy has no effect for rope_type default"));
}

TEST(WarningsTest, RampByTurnsHasNoEdgesToRound) {
  RopeConfig config = Yarn();
  config.ramp = YarnRamp::kTurns;
  EXPECT_THAT(WarningsOf(config), IsEmpty());
  config.truncate = true;
  EXPECT_THAT(WarningsOf(config), ElementsAre(HasSubstr("truncate has no effect with ramp")));
}

TEST(WarningsTest, FixedLongropeList) {
  RopeConfig config = {.rope_type = RopeType::kLongrope, .head_dim = 4};
  config.short_factor = {1, 1};
  config.long_factor = {1, 2};
  config.original_max_position_embeddings = 16;
  config.max_position_embeddings = 64;
  EXPECT_THAT(WarningsOf(config), IsEmpty());
  config.longrope_branch = LongropeBranch::kShort;
  EXPECT_THAT(WarningsOf(config), ElementsAre(HasSubstr("the short list is used for every")));
}

}  // namespace
}  // namespace rope::kernels
