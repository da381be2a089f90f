#include "client/cli/diagnose/position_solver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

namespace rope::client {
namespace {

const Intervals kEverywhere = {{-1e6, 1e6}};

// The angles of a vector at `position`, of `pairs` pairs with theta 10000, slowest first.
std::vector<PairAngle> AnglesAt(double position, size_t pairs, double slack) {
  std::vector<PairAngle> angles;
  for (size_t i = pairs; i-- > 0;) {
    const double frequency = std::pow(10000, -static_cast<double>(i) / static_cast<double>(pairs));
    angles.push_back({.angle = std::remainder(position * frequency, 2 * std::numbers::pi),
                      .slack = slack,
                      .frequency = frequency});
  }
  return angles;
}

TEST(SolvePositionTest, FindsTheOnlyPosition) {
  for (const double position : {0.0, 1.0, 99999.0, 654321.0, -12345.0, 17.25}) {
    for (const double slack : {1e-6, 1e-2}) {
      const Intervals solved = SolvePosition(AnglesAt(position, 16, slack), kEverywhere);
      ASSERT_EQ(solved.size(), 1u) << position;
      EXPECT_TRUE(Contains(solved, position));
      EXPECT_LT(solved[0].high - solved[0].low, 0.7) << position;
    }
  }
}

TEST(SolvePositionTest, AnglesOfNoPositionHaveNone) {
  std::vector<PairAngle> angles = AnglesAt(1000, 16, 1e-6);
  angles.back().angle += 0.5;
  EXPECT_TRUE(SolvePosition(angles, kEverywhere).empty());
}

TEST(SolvePositionTest, PairsThatSayNothingAreLeftOut) {
  std::vector<PairAngle> angles = AnglesAt(1000, 16, 1e-6);
  angles.back() = {.angle = 3, .slack = 4, .frequency = 1};
  EXPECT_TRUE(Contains(SolvePosition(angles, kEverywhere), 1000));
  for (PairAngle& pair : angles) pair.slack = 4;
  EXPECT_TRUE(Contains(SolvePosition(angles, kEverywhere), -999999));
}

TEST(SolvePositionTest, PairThatDoesNotTurnHasToBeStill) {
  std::vector<PairAngle> angles = AnglesAt(1000, 16, 1e-6);
  angles.insert(angles.begin(), {.angle = 0, .slack = 1e-6, .frequency = 0});
  EXPECT_TRUE(Contains(SolvePosition(angles, kEverywhere), 1000));
  angles.front().angle = 0.1;
  EXPECT_TRUE(SolvePosition(angles, kEverywhere).empty());
}

TEST(SolvePositionTest, OnePairAllowsManyPositions) {
  const Intervals solved =
      SolvePosition({{.angle = 0, .slack = 1e-6, .frequency = 1}}, {{-100, 100}});
  EXPECT_EQ(solved.size(), 31u);  // 15 turns in each direction
  EXPECT_EQ(IntegerIn(solved), 0);
  EXPECT_FALSE(Contains(solved, 6));
}

TEST(IntervalsTest, CommonPartsAndIntegers) {
  const Intervals common = Common({{0, 2}, {4, 6}}, {{1, 5}, {5.5, 9}});
  ASSERT_EQ(common.size(), 3u);
  EXPECT_EQ(common[0].low, 1);
  EXPECT_EQ(common[1].high, 5);
  EXPECT_EQ(common[2].low, 5.5);
  EXPECT_EQ(IntegerIn({{1.1, 1.9}, {2.2, 4}}), 3);
  EXPECT_EQ(IntegerIn({{1.1, 1.9}}), std::nullopt);
}

}  // namespace
}  // namespace rope::client
