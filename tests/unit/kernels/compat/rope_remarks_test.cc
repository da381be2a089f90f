// Remarks() of kernels/compat/rope_remarks.h.
#include "kernels/compat/rope_remarks.h"

#include <gtest/gtest.h>

#include "kernels/config/rope_config.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/kernels/config/remark_texts.h"

namespace rope::kernels {
namespace {

using ::rope::testing::TextsOf;

std::vector<std::string> TextsOn(const RopeConfig& config) {
  EXPECT_THAT(Validate(config), IsOk());
  return TextsOf(Remarks(config));
}

RopeConfig Yarn() {
  RopeConfig config = {.rope_type = RopeType::kYarn, .rope_theta = 150000, .head_dim = 64};
  config.factor = 32;
  config.original_max_position_embeddings = 4096;
  return config;
}

TEST(RemarksTest, PlainConfigHasNone) {
  EXPECT_THAT(TextsOn({.head_dim = 64}), IsEmpty());
}

TEST(RemarksTest, FactorBelowOne) {
  RopeConfig config = {.rope_type = RopeType::kLinear, .head_dim = 64};
  config.factor = 0.5;
  EXPECT_THAT(TextsOn(config),
              ElementsAre(HasSubstr("factor 0.5 is below 1: scaled frequencies turn 2 times")));
}

TEST(RemarksTest, EqualFrequencyFactors) {
  RopeConfig config = {.rope_type = RopeType::kLlama3, .head_dim = 64};
  config.factor = 16;
  config.low_freq_factor = 1;
  config.high_freq_factor = 1;
  config.original_max_position_embeddings = 8192;
  EXPECT_THAT(TextsOn(config),
              ElementsAre(HasSubstr("high_freq_factor equals low_freq_factor, 1")));
  config.high_freq_factor = 4;
  EXPECT_THAT(TextsOn(config), IsEmpty());
}

TEST(RemarksTest, FactorAgainstTheLengthRatio) {
  RopeConfig config = Yarn();
  config.truncate = true;
  config.max_position_embeddings = 131072;
  EXPECT_THAT(TextsOn(config), IsEmpty());
  config.factor = 16;
  EXPECT_THAT(
      TextsOn(config),
      ElementsAre(HasSubstr("factor 16 contradicts max_position_embeddings / "
                            "original_max_position_embeddings, 32; 16 is used (attention factor "
                            "1.27726; the ratio would give 1.34657)")));
}

TEST(RemarksTest, YarnFactorAbsent) {
  RopeConfig config = Yarn();
  config.factor.reset();
  config.max_position_embeddings = 131072;
  EXPECT_THAT(TextsOn(config), Contains(HasSubstr("factor absent, taken as")));
}

TEST(RemarksTest, YarnOriginalLengthAbsent) {
  RopeConfig config = Yarn();
  config.original_max_position_embeddings.reset();
  config.max_position_embeddings = 131072;
  EXPECT_THAT(TextsOn(config),
              Contains(HasSubstr("original_max_position_embeddings absent, taken as "
                                 "max_position_embeddings, 131072")));
}

TEST(RemarksTest, YarnTruncateAbsentSaysTheEdges) {
  EXPECT_THAT(TextsOn(Yarn()),
              ElementsAre(HasSubstr("truncate absent, taken as true; the ramp runs between 8 and "
                                    "18 instead of 8.09278 and 17.398")));
}

TEST(RemarksTest, HeadDimOfTheTensorDecidesTheEdges) {
  RopeConfig config = Yarn();
  config.head_dim.reset();
  EXPECT_THAT(Remarks(config), IsEmpty());
  EXPECT_THAT(TextsOf(Remarks(config, 64)), ElementsAre(HasSubstr("truncate absent")));
}

TEST(RemarksTest, MscaleAlone) {
  RopeConfig config = Yarn();
  config.factor = 40;
  config.truncate = true;
  config.mscale = 0.707;
  EXPECT_THAT(TextsOn(config),
              ElementsAre(HasSubstr("mscale without mscale_all_dim is ignored, as Hugging Face "
                                    "does (attention factor 1.36889); DeepSeek-style code uses it "
                                    "with 1 as the denominator and gets 1.2608")));
  config.mscale_all_dim = 0.707;
  EXPECT_THAT(TextsOn(config), IsEmpty());
}

TEST(RemarksTest, LoneMscaleThatChangesNothingIsSilent) {
  RopeConfig config = Yarn();
  config.truncate = true;
  config.mscale = 1;
  EXPECT_THAT(TextsOn(config), IsEmpty());
}

TEST(RemarksTest, Llama3ThatExtendsNothing) {
  RopeConfig config = {.rope_type = RopeType::kLlama3, .head_dim = 64};
  config.factor = 8;
  config.low_freq_factor = 1;
  config.high_freq_factor = 4;
  config.original_max_position_embeddings = 8192;
  config.max_position_embeddings = 131072;
  EXPECT_THAT(Remarks(config), IsEmpty());
  config.max_position_embeddings = 8192;
  EXPECT_THAT(TextsOn(config), ElementsAre(HasSubstr("max_position_embeddings 8192 is not above")));
}

TEST(RemarksTest, ReadingsOfEnginesAreNoRemarks) {
  RopeConfig config = Yarn();
  config.truncate = false;
  config.mrope = Mrope{.section = {8, 12, 12}};
  EXPECT_THAT(Remarks(config), IsEmpty());
  RopeConfig dynamic = {.rope_type = RopeType::kDynamic, .head_dim = 128};
  dynamic.factor = 4;
  dynamic.max_position_embeddings = 4096;
  EXPECT_THAT(Remarks(dynamic), IsEmpty());
}

TEST(RemarksTest, ScalingWithoutATypeIsAWarningAndOtherSettingsAreNotes) {
  RopeConfig config = {.head_dim = 64};
  config.factor = 2;
  config.mscale = 1;
  const std::vector<Remark> remarks = Remarks(config);
  ASSERT_EQ(remarks.size(), 2u);
  EXPECT_EQ(WeightOf(remarks[0].kind), RemarkWeight::kWarning);
  EXPECT_EQ(WeightOf(remarks[1].kind), RemarkWeight::kNote);
}

TEST(RemarksTest, ExplicitAttentionFactorOfYarn) {
  RopeConfig config = Yarn();
  config.truncate = true;
  config.attention_factor = 1;
  EXPECT_THAT(TextsOn(config),
              ElementsAre(HasSubstr("attention_factor 1 replaces the computed one, 1.34657")));
}

TEST(RemarksTest, BetaZero) {
  RopeConfig config = Yarn();
  config.beta_fast = 0;
  EXPECT_THAT(TextsOn(config), Contains(HasSubstr("beta_fast 0 is read as 32")));
}

TEST(RemarksTest, SettingsOfAnotherType) {
  RopeConfig config = {.head_dim = 64};
  config.factor = 2;
  config.mscale = 1;
  EXPECT_THAT(TextsOn(config), ElementsAre("factor has no effect for rope_type default",
                                           "mscale has no effect for rope_type default"));
}

TEST(RemarksTest, RotaryDimTruncatedOrContradicted) {
  RopeConfig config = {.head_dim = 100, .partial_rotary_factor = 0.57};
  EXPECT_THAT(TextsOn(config), ElementsAre(HasSubstr("truncated to a rotary_dim of 56")));
  config.rotary_dim = 32;
  EXPECT_THAT(TextsOn(config), ElementsAre(HasSubstr("rotary_dim 32 is used")));
}

TEST(RemarksTest, SettingsWithoutEffect) {
  RopeConfig config = {.head_dim = 64};
  config.ramp = YarnRamp::kTurns;
  config.attn_factor = 2;
  config.longrope_branch = LongropeBranch::kLong;
  config.alpha = 2;
  config.mixed_b = 0.5;
  config.seq_len_policy = SeqLenPolicy::kBatch;
  EXPECT_THAT(TextsOn(config), ElementsAre("attn_factor has no effect for rope_type default",
                                           "ramp has no effect for rope_type default",
                                           "longrope_branch has no effect for rope_type default",
                                           "alpha has no effect for rope_type default",
                                           "mixed_b has no effect for rope_type default",
                                           "seq_len_policy has no effect for rope_type default"));
}

TEST(RemarksTest, RampByTurnsHasNoEdgesToRound) {
  RopeConfig config = Yarn();
  config.ramp = YarnRamp::kTurns;
  EXPECT_THAT(TextsOn(config), IsEmpty());
  config.truncate = true;
  EXPECT_THAT(TextsOn(config), ElementsAre(HasSubstr("truncate has no effect with ramp")));
}

TEST(RemarksTest, FixedLongropeList) {
  RopeConfig config = {.rope_type = RopeType::kLongrope, .head_dim = 4};
  config.short_factor = {1, 1};
  config.long_factor = {1, 2};
  config.original_max_position_embeddings = 16;
  config.max_position_embeddings = 64;
  EXPECT_THAT(TextsOn(config), IsEmpty());
  config.longrope_branch = LongropeBranch::kShort;
  EXPECT_THAT(TextsOn(config), ElementsAre(HasSubstr("the short list is used for every")));
}

}  // namespace
}  // namespace rope::kernels
