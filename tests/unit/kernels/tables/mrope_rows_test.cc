#include "kernels/tables/mrope_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/unit/kernels/tables/table_rows.h"

namespace rope::kernels {
namespace {

using rope::testing::IsOk;

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

}  // namespace
}  // namespace rope::kernels
