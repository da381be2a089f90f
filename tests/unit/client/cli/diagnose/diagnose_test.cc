#include "client/cli/diagnose/diagnose.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "client/cli/diagnose/explain_cells.h"
#include "kernels/dtype/element.h"
#include "tests/support/matchers.h"

namespace rope::client {
namespace {

constexpr size_t kHeadDim = 8;
constexpr double kMultiplier = 1.25;

// A sample whose tensors are empty until Turn fills them.
RotatedSample Sample() {
  RotatedSample sample;
  sample.rows = 2;
  sample.head_dim = kHeadDim;
  sample.positions = {0, 1, 2, 40};
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform(-1, 1);
  for (size_t i = 0; i < sample.positions.size() * 2 * kHeadDim; ++i) {
    sample.before.push_back(static_cast<double>(static_cast<float>(uniform(random))));
  }
  sample.after = sample.before;
  return sample;
}

// theta 100 over `pairs` pairs, from channel `window` on.
Variant VariantOf(size_t pairs, double multiplier, const std::vector<std::string>& changes = {},
                  int64_t window = 0) {
  kernels::RopeConfig config = {.head_dim = kHeadDim,
                                .rotary_dim = static_cast<int64_t>(2 * pairs),
                                .attention_factor = multiplier};
  if (window > 0) config.rotary_offset = window;
  for (size_t i = 0; i < pairs; ++i) {
    const double exponent = -static_cast<double>(i) / static_cast<double>(pairs);
    config.inv_freq.push_back(std::pow(100, exponent));
  }
  return {changes, RopeNumbers::Of(config, kHeadDim, 1, DType::kFloat32).value()};
}

std::vector<Explanation> ExplainAll(const RotatedSample& sample,
                                    const std::vector<Variant>& variants) {
  return Explain(sample, sample, kernels::Pairing::kHalf, variants, kChangesMax);
}

// Fills `after` with half pairing, from channel `window` on, multiplied by `scale`.
void Turn(RotatedSample& sample, const Variant& variant, int64_t shift, double sign, double scale,
          size_t window = 0) {
  const size_t pairs = variant.numbers.inv_freq().size();
  for (size_t i = 0; i < sample.before.size(); i += kHeadDim) {
    const auto position = static_cast<double>(sample.positions[i / kHeadDim / 2] + shift);
    for (size_t pair = 0; pair < pairs; ++pair) {
      const double angle = sign * position * variant.numbers.inv_freq()[pair];
      const size_t a = i + window + pair;
      const size_t b = a + pairs;
      const double cos = scale * std::cos(angle);
      const double sin = scale * std::sin(angle);
      sample.after[a] = sample.before[a] * cos - sample.before[b] * sin;
      sample.after[b] = sample.before[a] * sin + sample.before[b] * cos;
    }
  }
}

TEST(ExplainTest, AsConfiguredComesFirstWhereItExplains) {
  RotatedSample sample = Sample();
  const Variant variant = VariantOf(4, kMultiplier);
  Turn(sample, variant, 0, 1, kMultiplier);
  const auto best = ExplainAll(sample, {variant}).front();
  EXPECT_TRUE(best.explains());
  EXPECT_THAT(best.changes, IsEmpty());
  EXPECT_LT(best.max_error, 1e-15);
}

TEST(ExplainTest, PositionBelowZeroTurnsBack) {
  RotatedSample sample = Sample();
  const Variant variant = VariantOf(4, 1);
  Turn(sample, variant, -1, 1, 1);  // position 0 becomes -1
  EXPECT_THAT(ExplainAll(sample, {variant}).front().changes, ElementsAre("positions - 1"));
}

TEST(ExplainTest, InverseAndTransposeDifferByTheMultiplier) {
  RotatedSample sample = Sample();
  const Variant variant = VariantOf(4, kMultiplier);
  Turn(sample, variant, 0, -1, 1 / kMultiplier);
  EXPECT_THAT(ExplainAll(sample, {variant}).front().changes, ElementsAre("inverse rotation"));
  Turn(sample, variant, 0, -1, kMultiplier);
  EXPECT_THAT(ExplainAll(sample, {variant}).front().changes,
              ElementsAre("transposed rotation (backward)"));
}

TEST(ExplainTest, AttentionFactorThatNobodyNamedIsMeasured) {
  RotatedSample sample = Sample();
  const Variant variant = VariantOf(4, 1);
  Turn(sample, variant, 0, 1, 1.5);
  EXPECT_THAT(ExplainAll(sample, {variant}).front().changes, ElementsAre("attention factor 1.5"));
}

TEST(ExplainTest, WindowAtTheWrongEndIsFound) {
  RotatedSample sample = Sample();
  const Variant variant = VariantOf(2, 1);
  Turn(sample, variant, 0, 1, 1, 4);
  EXPECT_THAT(ExplainAll(sample, {variant}).front().changes,
              ElementsAre("rotated channels at the end of the head"));
}

TEST(ExplainTest, WindowOfTheConfigIsWhereChannelsTurn) {
  RotatedSample sample = Sample();
  const Variant variant = VariantOf(2, 1, {}, 2);
  Turn(sample, variant, 0, 1, 1, 2);
  EXPECT_THAT(ExplainAll(sample, {variant}).front().changes, IsEmpty());
  sample.after = sample.before;
  Turn(sample, variant, 0, 1, 1, 0);
  EXPECT_THAT(ExplainAll(sample, {variant}).front().changes,
              ElementsAre("rotated channels at the start of the head"));
}

TEST(ExplainTest, AnotherConfigIsNamedAndOneChangeBeatsTwo) {
  RotatedSample sample = Sample();
  const Variant believed = VariantOf(4, 1);
  const Variant other = VariantOf(4, kMultiplier, {"yarn"});
  Turn(sample, other, 0, 1, kMultiplier);
  const auto all = ExplainAll(sample, {believed, other});
  EXPECT_EQ(all.front().changes.size(), 1u);
  Turn(sample, other, 1, 1, 1 / kMultiplier);
  for (const Explanation& explanation : ExplainAll(sample, {other})) {
    EXPECT_LE(explanation.changes.size(), 2u);
  }
}

TEST(ExplainTest, NothingExplainsNoise) {
  RotatedSample sample = Sample();
  for (size_t i = 0; i < sample.after.size(); ++i) sample.after[i] = sample.before[i] * 7 + 1;
  const auto all = ExplainAll(sample, {VariantOf(4, 1)});
  EXPECT_TRUE(all.empty() || !all.front().explains());
}

TEST(ExplainTest, WhatAddsToAnExplanationIsLeftOut) {
  RotatedSample sample = Sample();
  const Variant variant = VariantOf(4, 1);
  Turn(sample, variant, 1, 1, 1);
  size_t shifted = 0;
  size_t as_configured = 0;
  for (const Explanation& explanation : ExplainAll(sample, {variant})) {
    for (const std::string& change : explanation.changes) shifted += change == "positions + 1";
    as_configured += explanation.changes.empty();
  }
  EXPECT_EQ(shifted, 1u);
  EXPECT_EQ(as_configured, 1u);
}

TEST(ExplainTest, RoundedResultIsFoundByItsGrid) {
  RotatedSample sample = Sample();
  const Variant variant = VariantOf(4, 1);
  Turn(sample, variant, 0, 1, 1);
  const auto named = [&] {
    for (const Explanation& explanation : ExplainAll(sample, {variant})) {
      if (explanation.explains() && !explanation.changes.empty()) return explanation.changes[0];
    }
    return std::string();
  };
  EXPECT_EQ(named(), "");
  for (double& value : sample.after) {
    value = static_cast<double>(kernels::FromBFloat16(kernels::ToBFloat16(value)));
  }
  EXPECT_EQ(named(), "result rounded to bf16");
}

TEST(ExplainTest, ArithmeticInBFloat16IsFollowedStepByStep) {
  RotatedSample sample = Sample();
  sample.dtype = DType::kBFloat16;
  const Variant variant = VariantOf(4, 1);
  const auto round = [](double value) {
    return static_cast<double>(kernels::FromBFloat16(kernels::ToBFloat16(value)));
  };
  for (double& value : sample.before) value = round(value);
  for (size_t i = 0; i < sample.before.size(); i += kHeadDim) {
    const auto position = static_cast<double>(sample.positions[i / kHeadDim / 2]);
    for (size_t pair = 0; pair < 4; ++pair) {
      const double a = sample.before[i + pair];
      const double b = sample.before[i + pair + 4];
      const double cos = round(std::cos(position * variant.numbers.inv_freq()[pair]));
      const double sin = round(std::sin(position * variant.numbers.inv_freq()[pair]));
      sample.after[i + pair] = round(round(a * cos) + round(-b * sin));
      sample.after[i + pair + 4] = round(round(b * cos) + round(a * sin));
    }
  }
  const auto best = ExplainAll(sample, {variant}).front();
  EXPECT_THAT(best.changes, ElementsAre("computed in bf16 throughout"));
  EXPECT_EQ(best.max_error, 0);
}

TEST(ExplainTest, Float32AnglesAreFoundWhereTheyMatter) {
  RotatedSample sample = Sample();
  for (int64_t& position : sample.positions) position += 5000;
  const Variant variant = VariantOf(4, 1);
  for (size_t i = 0; i < sample.before.size(); i += kHeadDim) {
    const auto position = static_cast<float>(sample.positions[i / kHeadDim / 2]);
    for (size_t pair = 0; pair < 4; ++pair) {
      const double angle =
          static_cast<double>(position * static_cast<float>(variant.numbers.inv_freq()[pair]));
      const double a = sample.before[i + pair];
      const double b = sample.before[i + pair + 4];
      sample.after[i + pair] = a * std::cos(angle) - b * std::sin(angle);
      sample.after[i + pair + 4] = a * std::sin(angle) + b * std::cos(angle);
    }
  }
  EXPECT_THAT(ExplainAll(sample, {variant}).front().changes, ElementsAre("angles in float32"));
}

TEST(ExplainTest, SixteenBitResultsHaveHalfAUnit) {
  RotatedSample sample = Sample();
  const Variant variant = VariantOf(4, 1);
  Turn(sample, variant, 0, 1, 1);
  for (double& value : sample.after) value = std::ldexp(std::round(std::ldexp(value, 20)), -20);
  EXPECT_FALSE(ExplainAll(sample, {variant}).front().changes.empty() &&
               ExplainAll(sample, {variant}).front().explains());
  sample.dtype = DType::kBFloat16;
  EXPECT_THAT(ExplainAll(sample, {variant}).front().changes, IsEmpty());
  EXPECT_TRUE(ExplainAll(sample, {variant}).front().explains());
}

}  // namespace
}  // namespace rope::client
