#include "client/cli/diagnose/position_rules.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "tests/support/matchers.h"

namespace rope::client {
namespace {

using ::testing::Contains;  // position_solver.h has one of Intervals

// Tokens that should be at `start` and the positions after it, and that are at `positions`.
SolvedTokens Solved(int64_t start, const std::vector<double>& positions) {
  SolvedTokens tokens;
  const auto count = static_cast<int64_t>(positions.size());
  for (int64_t i = 0; i < count; ++i) {
    const double position = positions[static_cast<size_t>(i)];
    tokens.indices.push_back(i);
    tokens.believed.push_back(start + i);
    tokens.mirrored.push_back(start + count - 1 - i);
    tokens.solved.push_back({{position - 0.01, position + 0.01}});
  }
  return tokens;
}

std::vector<std::string> Rules(int64_t start, const std::vector<double>& positions) {
  std::vector<std::string> words;
  for (const PositionRule& rule : RulesOf(Solved(start, positions))) words.push_back(rule.words);
  return words;
}

TEST(RulesTest, NamesWhatHappenedToThePositions) {
  EXPECT_THAT(Rules(10, {10, 11, 12}), Contains(""));
  EXPECT_THAT(Rules(10, {11, 12, 13}), Contains("positions + 1"));
  EXPECT_THAT(Rules(10, {6, 7, 8}), Contains("positions - 4"));
  EXPECT_THAT(Rules(10, {0, 1, 2}), Contains("positions counted from 0"));
  EXPECT_THAT(Rules(10, {1, 2, 3}), Contains("positions counted from 1"));
  EXPECT_THAT(Rules(10, {5, 5, 5}), ElementsAre("every token at position 5"));
  EXPECT_THAT(Rules(10, {12, 11, 10}), Contains("positions reversed"));
  EXPECT_THAT(Rules(10, {30, 33, 36}), Contains("positions * 3"));
  EXPECT_THAT(Rules(10, {2.5, 2.75, 3}), Contains("positions / 4"));
  EXPECT_THAT(Rules(10, {3, 3.3, 3.6}), Contains("positions * 0.3"));
  EXPECT_THAT(Rules(10, {5, 5, 6}), Contains("positions / 2, rounded down"));
  EXPECT_THAT(Rules(6, {6, 7, 0, 1}), ElementsAre("positions modulo 8"));
  EXPECT_THAT(Rules(6, {6, 7, 7, 7}), Contains("positions not above 7"));
  EXPECT_THAT(Rules(6, {8, 8, 8, 9}), Contains("positions not below 8"));
  EXPECT_THAT(Rules(10, {-10, -11, -12}), Contains("inverse rotation"));
}

TEST(RulesTest, PaddingOnEitherSide) {
  EXPECT_THAT(Rules(50, {1, 1, 0, 1, 2}),
              Contains("left padding: the first 2 tokens at position 1, the others count from 0"));
  EXPECT_THAT(Rules(50, {0, 0, 0, 1, 2}),
              Contains("left padding: the first 2 tokens at position 0, the others count from 0"));
  EXPECT_THAT(Rules(50, {50, 51, 52, 0, 0}),
              Contains("right padding: the last 2 tokens at position 0, the others count from 50"));
}

TEST(RulesTest, EveryRuleThatFitsIsNamed) {
  EXPECT_THAT(Rules(960, {0, 1, 2}),
              ElementsAre("positions counted from 0",
                          "positions modulo 4 (or another divisor of 960 above 2)"));
}

TEST(RulesTest, PositionsWithoutARuleAreListed) {
  EXPECT_THAT(Rules(10, {3, 1, 4, 1, 5}), ElementsAre("positions 3, 1, 4, 1, 5"));
}

TEST(RulesTest, TokenWithoutAPositionHasNoRule) {
  SolvedTokens tokens = Solved(10, {3, 1, 4});
  tokens.solved[1].clear();
  EXPECT_TRUE(RulesOf(tokens).empty());
}

TEST(ShortFormTest, RunsAreShort) {
  using Positions = std::vector<double>;
  EXPECT_EQ(ShortForm(Positions{0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7}), "0..7, 7, 7, 7");
  EXPECT_EQ(ShortForm(Positions{12, 12, 12, 12, 12}), "12 (5 times)");
  EXPECT_EQ(ShortForm(Positions{0, 1, 2, 9, 8, 7, 6}), "0..2, 9..6");
  EXPECT_EQ(ShortForm(Positions{4, 5}), "4, 5");
  EXPECT_EQ(ShortForm(Positions{0.5}), "0.5");
  Positions far(40);
  for (size_t i = 0; i < far.size(); ++i) far[i] = static_cast<double>(3 * i);
  EXPECT_EQ(ShortForm(far), "0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 33, 36, 39, 42, 45, ...");
}

}  // namespace
}  // namespace rope::client
