#include "server/request/layout.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

struct LayoutCase {
  const char* letters;
  std::vector<int64_t> shape;
  int64_t pre, heads, post, head_dim;
};

class LayoutTest : public ::testing::TestWithParam<LayoutCase> {};

TEST_P(LayoutTest, LettersAndShapeGiveTheMemoryOrder) {
  const LayoutCase& c = GetParam();
  ASSERT_OK(layout, ParseLayout(c.letters, c.shape, 4, "t"));
  EXPECT_EQ(layout->pre, c.pre);
  EXPECT_EQ(layout->heads, c.heads);
  EXPECT_EQ(layout->post, c.post);
  EXPECT_EQ(layout->head_dim, c.head_dim);
  EXPECT_EQ(layout->tokens(), c.pre * c.post);
}

INSTANTIATE_TEST_SUITE_P(
    All, LayoutTest,
    ::testing::Values(
        LayoutCase{"BSHD", {2, 3, 5, 8}, 6, 5, 1, 8}, LayoutCase{"SBHD", {3, 2, 5, 8}, 6, 5, 1, 8},
        LayoutCase{"BHSD", {2, 5, 3, 8}, 2, 5, 3, 8}, LayoutCase{"HBSD", {5, 2, 3, 8}, 1, 5, 6, 8},
        LayoutCase{"THD", {7, 5, 8}, 7, 5, 1, 8}, LayoutCase{"HTD", {5, 7, 8}, 1, 5, 7, 8},
        LayoutCase{"BSD", {2, 3, 8}, 6, 1, 1, 8}, LayoutCase{"SD", {3, 8}, 3, 1, 1, 8},
        LayoutCase{"TD", {3, 8}, 3, 1, 1, 8}, LayoutCase{"D", {8}, 1, 1, 1, 8},
        LayoutCase{"HD", {5, 8}, 1, 5, 1, 8}, LayoutCase{"LBSHD", {4, 2, 3, 5, 8}, 24, 5, 1, 8},
        LayoutCase{"LBHSD", {4, 2, 5, 3, 8}, 8, 5, 3, 8},
        LayoutCase{"LHTD", {4, 5, 7, 8}, 4, 5, 7, 8}, LayoutCase{"BSHD", {0, 3, 5, 8}, 0, 5, 1, 8},
        LayoutCase{"BSHD", {2, 3, 0, 8}, 6, 0, 1, 8}),
    [](const auto& test) { return test.param.letters + std::to_string(test.index); });

class BadLettersTest : public ::testing::TestWithParam<const char*> {};

TEST_P(BadLettersTest, AreNamedInTheError) {
  const std::string letters = GetParam();
  const std::vector<int64_t> shape(letters.size(), 2);
  EXPECT_THAT(ParseLayout(letters, shape, 4, "tensors[3]"),
              IsInvalid("tensors[3].layout: got \"" + letters + "\", want letters of"));
}

INSTANTIATE_TEST_SUITE_P(All, BadLettersTest,
                         ::testing::Values("", "BSH", "DBS", "BBSD", "BTHD", "STD", "XD", "bshd",
                                           "BSHDD", "BS HD", "LLD"));

TEST(ParseLayoutTest, AnotherRankThanLettersIsInvalid) {
  EXPECT_THAT(ParseLayout("BSHD", {2, 3, 8}, 4, "t"),
              IsInvalid("t.array.shape: got 3 axes, want 4 for layout BSHD"));
}

TEST(ParseLayoutTest, NegativeLengthIsInvalidBesideZeroToo) {
  EXPECT_THAT(ParseLayout("THD", {-1, 2, 8}, 4, "t"), IsInvalid("t.array.shape: got -1"));
  EXPECT_THAT(ParseLayout("THD", {0, -2, 8}, 4, "t"), IsInvalid("t.array.shape: got -2"));
}

TEST(ParseLayoutTest, ProductPastSixtyThreeBitsIsInvalid) {
  const int64_t big = int64_t{1} << 31;
  EXPECT_THAT(ParseLayout("THD", {big, big, 2}, 1, "t"), IsInvalid("a product that fits"));
  EXPECT_THAT(ParseLayout("THD", {big, big / 2, 2}, 4, "t"), IsInvalid("a product that fits"));
  EXPECT_THAT(ParseLayout("THD", {big, big / 2, 1}, 2, "t"), IsOk());
}

TEST(ParseLayoutTest, ZeroLengthDoesNotHideAnOverflow) {
  const int64_t max = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(ParseLayout("BSHD", {max, 0, max, 2}, 4, "t"), IsInvalid("a product that fits"));
}

TEST(LayoutAxesTest, MissingAxisHasLengthOne) {
  ASSERT_OK(layout, ParseLayout("SBHD", {3, 2, 5, 8}, 4, "t"));
  EXPECT_EQ(layout->Length('S'), 3);
  EXPECT_EQ(layout->Length('B'), 2);
  EXPECT_EQ(layout->Length('T'), 1);
  EXPECT_TRUE(layout->Has('B'));
  EXPECT_FALSE(layout->Has('T'));
}

// The value b * 100 + s * 10 + t of each token, in memory order.
std::vector<int64_t> Visited(const char* letters, const std::vector<int64_t>& shape) {
  std::vector<int64_t> visited;
  const auto layout = ParseLayout(letters, shape, 4, "t");
  EXPECT_THAT(layout, IsOk());
  ForEachToken(*layout, [&visited](int64_t token, const TokenIndex& i) {
    EXPECT_EQ(token, static_cast<int64_t>(visited.size()));
    visited.push_back(i.b * 100 + i.s * 10 + i.t);
  });
  return visited;
}

TEST(ForEachTokenTest, FollowsTheOrderOfTheAxes) {
  EXPECT_THAT(Visited("BSHD", {2, 3, 4, 8}), ElementsAre(0, 10, 20, 100, 110, 120));
  EXPECT_THAT(Visited("SBHD", {3, 2, 4, 8}), ElementsAre(0, 100, 10, 110, 20, 120));
  EXPECT_THAT(Visited("BHSD", {2, 4, 3, 8}), ElementsAre(0, 10, 20, 100, 110, 120));
  EXPECT_THAT(Visited("THD", {3, 4, 8}), ElementsAre(0, 1, 2));
}

TEST(ForEachTokenTest, LayersRepeatTheTokens) {
  EXPECT_THAT(Visited("LSD", {2, 2, 8}), ElementsAre(0, 10, 0, 10));
  EXPECT_THAT(Visited("SLD", {2, 2, 8}), ElementsAre(0, 0, 10, 10));
}

TEST(ForEachTokenTest, EmptyAxisVisitsNothingAndNoAxisVisitsOnce) {
  EXPECT_THAT(Visited("BSHD", {2, 0, 4, 8}), ElementsAre());
  EXPECT_THAT(Visited("HD", {4, 8}), ElementsAre(0));
}

}  // namespace
}  // namespace rope::server
