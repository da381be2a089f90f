#include "kernels/tables/difference_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace rope::kernels {
namespace {

std::vector<InverseFrequency> Frequencies(double theta) {
  std::vector<InverseFrequency> inv_freq;
  for (int i = 0; i < 6; ++i) inv_freq.push_back(std::pow(theta, -i / 6.0L));
  return inv_freq;
}

RowPlacement At(const std::vector<InverseFrequency>& inv_freq,
                absl::Span<const int64_t> positions) {
  return {inv_freq, {positions, positions, positions}, nullptr};
}

TEST(DifferenceRowsTest, TurnsByTheDifferenceOfBothAngles) {
  const std::vector<InverseFrequency> here = Frequencies(10000);
  const std::vector<InverseFrequency> there = Frequencies(500000);
  const std::vector<int64_t> to = {0, 17, 1000000, 1 << 30};
  const std::vector<int64_t> from = {5, 17, 3, 1 << 30};
  TokenRows rows;
  AppendDifferenceRows(At(here, to), At(there, from), 1.5, rows);
  ASSERT_EQ(rows.rows.size(), 4U);
  for (size_t t = 0; t < 4; ++t) {
    for (size_t j = 0; j < here.size(); ++j) {
      // 2^30 times the last bit of a long double changes the angle by 6e-11.
      const long double angle =
          static_cast<long double>(to[t]) * here[j] - static_cast<long double>(from[t]) * there[j];
      const RowRef& row = rows.rows[t];
      EXPECT_NEAR(row.page->Cos(row.index)[j], static_cast<double>(1.5L * std::cos(angle)), 1e-7);
      EXPECT_NEAR(row.page->Sin(row.index)[j], static_cast<double>(1.5L * std::sin(angle)), 1e-7);
    }
  }
}

TEST(DifferenceRowsTest, TheSamePlaceIsNoRotationAtAll) {
  const std::vector<InverseFrequency> inv_freq = Frequencies(10000);
  const std::vector<int64_t> positions = {123456789};
  TokenRows rows;
  AppendDifferenceRows(At(inv_freq, positions), At(inv_freq, positions), 1, rows);
  for (size_t j = 0; j < inv_freq.size(); ++j) {
    EXPECT_EQ(rows.rows[0].page->Cos(0)[j], 1);
    EXPECT_NEAR(rows.rows[0].page->Sin(0)[j], 0, 1e-15);
  }
}

TEST(DifferenceRowsTest, EachSideTakesItsOwnAxes) {
  const std::vector<InverseFrequency> inv_freq = Frequencies(10000);
  Mrope mrope;
  mrope.section = {2, 2, 2};
  const std::vector<std::vector<int64_t>> axes = {{100}, {20}, {3}};
  const RowPlacement to = {inv_freq, {axes[0], axes[1], axes[2]}, &mrope};
  const std::vector<int64_t> from = {7};
  TokenRows rows;
  AppendDifferenceRows(to, At(inv_freq, from), 1, rows);
  for (size_t j = 0; j < inv_freq.size(); ++j) {
    const auto difference = static_cast<long double>(axes[j / 2][0] - from[0]);
    EXPECT_NEAR(rows.rows[0].page->Cos(0)[j],
                static_cast<double>(std::cos(difference * inv_freq[j])), 1e-7)
        << j;
  }
}

}  // namespace
}  // namespace rope::kernels
