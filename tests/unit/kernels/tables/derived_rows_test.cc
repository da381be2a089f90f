#include "kernels/tables/derived_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/unit/kernels/tables/table_rows.h"

namespace rope::kernels {
namespace {

TEST(AppendMropeRowsTest, EachFrequencyTakesItsAxis) {
  const std::vector<int64_t> t = {0, 1, 2, 2, 1000000, 7};
  const std::vector<int64_t> h = {0, 1, 5, 6, 3, 7};
  const std::vector<int64_t> w = {0, 1, 9, 2, 4, 7};
  const absl::Span<const int64_t> axes[] = {t, h, w};
  for (const Mrope::Layout layout : {Mrope::Layout::kSections, Mrope::Layout::kInterleaved}) {
    for (const bool cacheable : {true, false}) {
      const Mrope mrope = {.section = {6, 5, 5}, .layout = layout};
      TableCache cache(kLargeBudget);
      Frequencies frequencies = MakeFrequencies(10000, 16, 1.5);
      frequencies.cacheable = cacheable;
      TokenRows rows;
      ASSERT_THAT(AppendMropeRows(cache, frequencies, mrope, axes, rows), IsOk());
      ASSERT_EQ(rows.rows.size(), t.size());
      for (size_t i = 0; i < t.size(); ++i) {
        for (int64_t j = 0; j < 16; ++j) {
          const int64_t position = axes[static_cast<size_t>(AxisOf(mrope, j))][i];
          const size_t column = static_cast<size_t>(j);
          const CosSin exact = ExactCosSin(position, frequencies.inv_freq[column], 1.5);
          EXPECT_NEAR(rows.rows[i].page->Cos(rows.rows[i].index)[j], exact.cos,
                      Tolerance(exact.cos));
          EXPECT_NEAR(rows.rows[i].page->Sin(rows.rows[i].index)[j], exact.sin,
                      Tolerance(exact.sin));
        }
      }
    }
  }
}

TEST(AppendMropeRowsTest, TokensOfOnePositionShareTheCachedRows) {
  TableCache cache(kLargeBudget);
  const Frequencies frequencies = MakeFrequencies(10000, 16);
  const Mrope mrope = {.section = {6, 5, 5}, .layout = Mrope::Layout::kSections};
  const std::vector<int64_t> text = {10, 11};
  const absl::Span<const int64_t> axes[] = {text, text, text};
  TokenRows rows;
  ASSERT_THAT(AppendMropeRows(cache, frequencies, mrope, axes, rows), IsOk());
  const TokenRows plain = Rows(cache, frequencies, text);
  EXPECT_EQ(rows.rows[1].page, plain.rows[1].page);
  EXPECT_EQ(rows.rows[1].index, plain.rows[1].index);
}

// Serves tokens until all are served, with `budget` bytes to build each time. Returns how many each
// time.
std::vector<int64_t> Served(std::vector<int64_t> t, std::vector<int64_t> h, std::vector<int64_t> w,
                            int64_t budget, bool cacheable = true) {
  TableCache cache(kLargeBudget);
  Frequencies frequencies = MakeFrequencies(10000, 64);
  frequencies.cacheable = cacheable;
  const Mrope mrope = {.section = {24, 20, 20}, .layout = Mrope::Layout::kSections};
  std::vector<int64_t> served;
  for (size_t begin = 0; begin < t.size();) {
    const absl::Span<const int64_t> axes[] = {absl::MakeConstSpan(t).subspan(begin),
                                              absl::MakeConstSpan(h).subspan(begin),
                                              absl::MakeConstSpan(w).subspan(begin)};
    TokenRows rows;
    int64_t left = budget;
    const auto count = AppendMropeRows(cache, frequencies, mrope, axes, left, rows);
    EXPECT_THAT(count, IsOk());
    if (!count.ok()) break;
    EXPECT_EQ(static_cast<int64_t>(rows.rows.size()), *count);
    served.push_back(*count);
    begin += static_cast<size_t>(*count);
  }
  return served;
}

constexpr int64_t kPageBytes = kPageRows * 2 * 64 * 4;

std::vector<int64_t> Scattered(int64_t first) {
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < 60; ++i) positions.push_back(first + i * 10 * kPageRows);
  return positions;
}

TEST(MropeBudgetTest, EachAxisBuildsItsPart) {
  for (const bool cacheable : {true, false}) {
    // A row that is not cached costs a quarter of a page.
    const int64_t budget = cacheable ? 63 * kPageBytes : 63 * kPageBytes / 4;
    EXPECT_THAT(Served(Scattered(0), Scattered(1 << 20), Scattered(1 << 21), budget, cacheable),
                ElementsAre(21, 21, 18))
        << cacheable;
  }
}

TEST(MropeBudgetTest, TextLeavesThePartOfTheOtherAxes) {
  std::vector<int64_t> text(30 * size_t{kPageRows});
  std::iota(text.begin(), text.end(), 0);
  EXPECT_THAT(Served(text, text, text, 60 * kPageBytes),
              ElementsAre(20 * kPageRows, 10 * kPageRows));
}

TEST(MropeBudgetTest, RowsOfTheirOwnMayCostTheBudgetOnceMore) {
  std::vector<int64_t> t(100, 1030);
  std::vector<int64_t> h(100, 1031);
  EXPECT_THAT(Served(t, h, t, kPageBytes), ElementsAre(64, 36));
}

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
