#include "client/cli/diagnose/diagnose_configs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/support/matchers.h"

namespace rope::client {
namespace {

using kernels::Pairing;
using kernels::RopeConfig;
using kernels::RopeType;

// Tokens at `positions`, with one row of (1, 0) pairs rotated by theta^(-i/pairs) / factor.
RotatedSample Turned(const std::vector<int64_t>& positions, double theta, double factor,
                     size_t pairs, int64_t head_dim) {
  RotatedSample sample;
  sample.rows = 1;
  sample.head_dim = head_dim;
  sample.positions = positions;
  for (const int64_t position : positions) {
    std::vector<double> before(static_cast<size_t>(head_dim), 0.5);
    std::vector<double> after = before;
    for (size_t i = 0; i < pairs; ++i) {
      const double exponent = -static_cast<double>(i) / static_cast<double>(pairs);
      const double angle = static_cast<double>(position) * std::pow(theta, exponent) / factor;
      before[i] = 1;
      before[i + pairs] = 0;
      after[i] = std::cos(angle);
      after[i + pairs] = std::sin(angle);
    }
    sample.before.insert(sample.before.end(), before.begin(), before.end());
    sample.after.insert(sample.after.end(), after.begin(), after.end());
  }
  return sample;
}

std::vector<std::string> WordsOf(const std::vector<ConfigChange>& changes) {
  std::vector<std::string> words;
  for (const ConfigChange& change : changes) words.push_back(change.words);
  return words;
}

TEST(EstimateTest, ThetaAndFactorComeFromTheTurnBetweenTokens) {
  const RotatedSample sample = Turned({1000, 1001, 1002, 1009, 1060}, 73000, 6, 16, 32);
  const auto estimate = EstimateFrequencies(sample, Pairing::kHalf, 0, 16);
  ASSERT_TRUE(estimate.has_value());
  EXPECT_NEAR(estimate->theta, 73000, 1e-4);
  EXPECT_NEAR(estimate->factor, 6, 1e-9);
}

TEST(EstimateTest, TokensThatAreFarApartSayNothing) {
  const RotatedSample sample = Turned({0, 5, 10}, 10000, 1, 16, 32);
  EXPECT_FALSE(EstimateFrequencies(sample, Pairing::kHalf, 0, 16).has_value());
}

TEST(EstimateTest, OneTokenSaysNothing) {
  const RotatedSample sample = Turned({3}, 10000, 1, 16, 32);
  EXPECT_FALSE(EstimateFrequencies(sample, Pairing::kHalf, 0, 16).has_value());
}

TEST(EstimateTest, RotaryDimIsWhereTheLastChannelChanged) {
  EXPECT_EQ(EstimateRotaryDim(Turned({7, 8}, 10000, 1, 6, 32), 0), 12);
  EXPECT_EQ(EstimateRotaryDim(Turned({0}, 10000, 1, 6, 32), 0), 0);
  EXPECT_EQ(EstimateRotaryDim(Turned({7, 8}, 10000, 1, 6, 32), 4), 8);
}

TEST(ConfigChangesTest, WhatTheTensorsSayIsAmongThem) {
  const RotatedSample sample = Turned({0, 1, 2, 3, 20}, 73000, 6, 6, 32);
  const RopeConfig believed = {
      .rope_type = RopeType::kDefault, .rope_theta = 10000, .head_dim = 32};
  EXPECT_THAT(WordsOf(ConfigChanges(believed, 6, Pairing::kHalf, sample)), Contains("theta 73000"));
  EXPECT_THAT(WordsOf(ConfigChanges(believed, 6, Pairing::kHalf, sample)),
              Contains("linear scaling, factor 6"));
  EXPECT_THAT(WordsOf(ConfigChanges(believed, 16, Pairing::kHalf, sample)),
              Contains("rotary_dim 12"));
}

TEST(ConfigChangesTest, TheBelievedValueIsNoChange) {
  const RotatedSample sample = Turned({0}, 10000, 1, 16, 32);
  RopeConfig believed = {.rope_type = RopeType::kLinear, .rope_theta = 10000, .head_dim = 32};
  believed.factor = 4;
  const auto words = WordsOf(ConfigChanges(believed, 16, Pairing::kHalf, sample));
  EXPECT_THAT(words, Not(Contains("theta 10000")));
  EXPECT_THAT(words, Not(Contains("linear scaling, factor 4")));
  EXPECT_THAT(words, Not(Contains("rotary_dim 32")));
  EXPECT_THAT(words, Contains("no scaling"));
  EXPECT_THAT(words, Contains("linear scaling, factor 8"));
}

TEST(ConfigChangesTest, YarnHasItsReadings) {
  const RotatedSample sample = Turned({0}, 10000, 1, 16, 32);
  RopeConfig believed = {.rope_type = RopeType::kYarn, .rope_theta = 10000, .head_dim = 32};
  believed.factor = 4;
  believed.original_max_position_embeddings = 4096;
  believed.truncate = false;
  const auto changes = ConfigChanges(believed, 16, Pairing::kHalf, sample);
  EXPECT_THAT(WordsOf(changes), Contains("yarn truncate true"));
  EXPECT_THAT(WordsOf(changes), Contains("yarn ramp by turns"));
  EXPECT_THAT(WordsOf(changes), Contains("llama3 scaling, factor 4"));
  EXPECT_LE(changes.size(), kConfigChangesMax);
}

TEST(ConfigChangesTest, NoScalingKeepsThetaAndDims) {
  const RotatedSample sample = Turned({0}, 10000, 1, 8, 32);
  RopeConfig believed = {.rope_type = RopeType::kYarn, .rope_theta = 500000, .head_dim = 32};
  believed.rotary_dim = 16;
  believed.factor = 4;
  for (const ConfigChange& change : ConfigChanges(believed, 8, Pairing::kHalf, sample)) {
    if (change.words != "no scaling") continue;
    EXPECT_EQ(change.config.rope_type, RopeType::kDefault);
    EXPECT_EQ(change.config.rope_theta, 500000);
    EXPECT_EQ(change.config.rotary_dim, 16);
    EXPECT_FALSE(change.config.factor.has_value());
    return;
  }
  FAIL() << "no such change";
}

}  // namespace
}  // namespace rope::client
