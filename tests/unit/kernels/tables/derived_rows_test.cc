// Their numbers: tests/conformance/request_property_test.cc, against the oracle.
#include "kernels/tables/derived_rows.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/unit/kernels/tables/table_rows.h"

namespace rope::kernels {
namespace {

TEST(AppendMropeRowsTest, TokensOfOnePositionShareTheCachedRows) {
  TableCache cache(kLargeBudget);
  const Frequencies frequencies = MakeFrequencies(10000, 16);
  const Mrope mrope = {.section = {6, 5, 5}, .layout = Mrope::Layout::kSections};
  const std::vector<int64_t> text = {10, 11};
  const absl::Span<const int64_t> axes[] = {text, text, text};
  TokenRows rows;
  int64_t budget = kLargeBudget;
  ASSERT_THAT(AppendMropeRows(cache, frequencies, mrope, axes, budget, rows), IsOk());
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

}  // namespace
}  // namespace rope::kernels
