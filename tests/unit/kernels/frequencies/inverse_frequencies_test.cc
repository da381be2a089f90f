// Formulas that no golden file covers. frequencies_test.cc tests the others.
#include "kernels/frequencies/inverse_frequencies.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/frequencies/frequencies.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

using Numbers = std::vector<long double>;

std::shared_ptr<const ResolvedRope> MustResolve(const RopeConfig& config) {
  auto rope = Resolve(config);
  EXPECT_THAT(rope, IsOk());
  return rope.ok() ? *rope : nullptr;
}

Numbers At(const RopeConfig& config, int64_t seq_len = 1) {
  return MustResolve(config)->Evaluate(seq_len).inv_freq;
}

void ExpectNear(const Numbers& got, const Numbers& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LE(std::abs(got[i] - want[i]), 1e-17L * want[i]) << i;
  }
}

RopeConfig Yarn() {
  RopeConfig config = {.rope_type = RopeType::kYarn, .rope_theta = 500000, .head_dim = 128};
  config.factor = 8;
  config.original_max_position_embeddings = 8192;
  config.beta_slow = 1;
  config.beta_fast = 4;
  return config;
}

TEST(YarnByTurnsTest, IsLlama3TimesTheAttentionFactor) {
  RopeConfig yarn = Yarn();
  yarn.ramp = YarnRamp::kTurns;
  RopeConfig llama3 = yarn;
  llama3.rope_type = RopeType::kLlama3;
  llama3.low_freq_factor = yarn.beta_slow;
  llama3.high_freq_factor = yarn.beta_fast;
  EXPECT_EQ(At(yarn), At(llama3));
  EXPECT_NEAR(MustResolve(yarn)->attention_factor(), 0.1 * std::log(8.0) + 1, 1e-15);
  EXPECT_EQ(MustResolve(llama3)->attention_factor(), 1);
}

TEST(AttnFactorTest, MultipliesTheComputedFactor) {
  RopeConfig config = Yarn();
  config.factor = 4;
  config.attn_factor = 0.8782488562869419;  // 1 / (0.1 ln 4 + 1), as one public model ships
  EXPECT_NEAR(MustResolve(config)->attention_factor(), 1, 1e-15);
  config.mscale = 0.5;
  config.mscale_all_dim = 2;
  config.attn_factor = 3;
  const double log4 = std::log(4.0);
  EXPECT_NEAR(MustResolve(config)->attention_factor(), 3 * (0.05 * log4 + 1) / (0.2 * log4 + 1),
              1e-15);
  config.attention_factor = 1.5;  // replaces all of them
  EXPECT_EQ(MustResolve(config)->attention_factor(), 1.5);
}

RopeConfig Longrope() {
  RopeConfig config = {.rope_type = RopeType::kLongrope, .head_dim = 4};
  config.short_factor = {1, 2};
  config.long_factor = {1, 4};
  config.original_max_position_embeddings = 16;
  config.max_position_embeddings = 64;
  return config;
}

TEST(LongropeBranchTest, OneListForEveryLength) {
  const Numbers at_16 = At(Longrope(), 16);
  const Numbers at_17 = At(Longrope(), 17);
  RopeConfig config = Longrope();
  for (const auto& [branch, want] :
       {std::pair(LongropeBranch::kShort, at_16), std::pair(LongropeBranch::kLong, at_17)}) {
    config.longrope_branch = branch;
    const auto rope = MustResolve(config);
    EXPECT_FALSE(rope->DependsOnSeqLen());
    for (const int64_t seq_len : {1, 16, 17, 1000000}) {
      EXPECT_EQ(rope->Evaluate(seq_len).inv_freq, want);
      EXPECT_EQ(rope->ForSeqLen(seq_len, Multiplier::kOne)->inv_freq, want);
    }
  }
}

TEST(AlphaTest, EnlargesTheBaseAtEveryLength) {
  RopeConfig config = {.rope_type = RopeType::kDynamic, .head_dim = 128};
  config.alpha = 1000;
  const auto rope = MustResolve(config);  // neither factor nor length is needed
  EXPECT_FALSE(rope->DependsOnSeqLen());
  EXPECT_NEAR(rope->Evaluate(1).rope_theta, 11158839.925, 5e-4);
  EXPECT_EQ(rope->Evaluate(1).inv_freq, rope->Evaluate(1000000).inv_freq);
  EXPECT_EQ(rope->ForSeqLen(1000000, Multiplier::kOne), rope->ForSeqLen(1, Multiplier::kOne));
  EXPECT_TRUE(rope->ForSeqLen(1000000, Multiplier::kOne)->cacheable);
  ExpectNear({rope->Evaluate(1).inv_freq[63]},
             {std::pow(10000.0L * std::pow(1000.0L, 128.0L / 126), -126.0L / 128)});
}

TEST(NtkTest, FixedMultipliesTheBaseAndDividesEveryFrequency) {
  RopeConfig config = {.rope_type = RopeType::kNtk, .head_dim = 8};
  config.factor = 16;
  Numbers want;
  for (int i = 0; i < 4; ++i) {
    want.push_back(std::pow(160000.0L, -2.0L * i / 8) / 2);  // 16^(2/8) = 2
  }
  ExpectNear(At(config), want);
}

TEST(NtkTest, MixedDividesMoreAndMore) {
  RopeConfig config = {.rope_type = RopeType::kNtk, .head_dim = 8};
  config.factor = 16;
  config.mixed_b = 2;
  const Numbers plain = At({.head_dim = 8});
  Numbers want;
  // a = ln 16 / 4^2, so frequency i is divided by 16^((i+1)^2 / 16): the last by the factor.
  for (int i = 0; i < 4; ++i) {
    want.push_back(plain[static_cast<size_t>(i)] / std::pow(16.0L, (i + 1) * (i + 1) / 16.0L));
  }
  ExpectNear(At(config), want);
  config.mixed_b = 0;  // every frequency is divided by the factor
  RopeConfig linear = {.rope_type = RopeType::kLinear, .head_dim = 8};
  linear.factor = 16;
  ExpectNear(At(config), At(linear));
}

TEST(AxialTest, LinearDividesAndOtherTypesAreInvalid) {
  RopeConfig config = {.rope_type = RopeType::kLinear, .head_dim = 16};
  config.factor = 4;
  config.mrope = Mrope{.section = {0, 4, 4}, .layout = Mrope::Layout::kAxial};
  EXPECT_EQ(At(config)[4], 0.25);
  config.rope_type = RopeType::kNtk;
  EXPECT_THAT(Resolve(config), IsInvalid("rope_type: got ntk, want default or linear"));
}

TEST(MropeRulesTest, SectionsThatDoNotFitAreInvalid) {
  RopeConfig config = {.head_dim = 16};
  config.mrope = Mrope{.section = {2, 4, 2}, .layout = Mrope::Layout::kHwInterleaved};
  EXPECT_THAT(Resolve(config), IsInvalid("mrope_section: got [2, 4, 2], want equal counts of h"));
  config.mrope->section = {2, 3, 3};
  EXPECT_THAT(Resolve(config), IsOk());
  for (const auto layout : {Mrope::Layout::kSections, Mrope::Layout::kInterleaved,
                            Mrope::Layout::kHwInterleaved, Mrope::Layout::kAxial}) {
    config.mrope = Mrope{.section = {1, 3, 3}, .layout = layout};
    EXPECT_THAT(Resolve(config), IsInvalid("sum is rotary_dim/2, 8"));
  }
}

TEST(UnscaledTest, IsTheDefaultOfTheSameBase) {
  const auto rope = MustResolve(Yarn());
  EXPECT_EQ(UnscaledFrequencies(rope->config(), 128, 128),
            At({.rope_theta = 500000, .head_dim = 128}));
  RopeConfig proportional = {
      .rope_type = RopeType::kProportional, .head_dim = 8, .partial_rotary_factor = 0.5};
  proportional.factor = 2;
  const Numbers unscaled = UnscaledFrequencies(MustResolve(proportional)->config(), 8, 8);
  EXPECT_EQ(unscaled[0], 1);
  EXPECT_EQ(unscaled[1], At({.head_dim = 8})[1]);
  EXPECT_THAT(std::vector(unscaled.begin() + 2, unscaled.end()), Each(0));
}

}  // namespace
}  // namespace rope::kernels
