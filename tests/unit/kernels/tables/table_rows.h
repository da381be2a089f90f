// Test helpers: makes frequencies, gets rows of a table cache, and checks these rows.
//
// Threading:  Any thread.
#ifndef ROPE_TESTS_UNIT_KERNELS_TABLES_TABLE_ROWS_H_
#define ROPE_TESTS_UNIT_KERNELS_TABLES_TABLE_ROWS_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/tables/table_cache.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {

inline constexpr int64_t kLargeBudget = int64_t{1} << 30;

inline Frequencies MakeFrequencies(double theta, int64_t columns, double multiplier = 1) {
  Frequencies frequencies;
  for (int64_t i = 0; i < columns; ++i) {
    frequencies.inv_freq.push_back(
        std::pow(static_cast<long double>(theta), -static_cast<long double>(i) / columns));
  }
  frequencies.multiplier = multiplier;
  frequencies.key = TableKey(frequencies);
  return frequencies;
}

// The tolerance: 0.51 units in the last place, plus the error of a cos or sin near zero.
inline double Tolerance(double exact) {
  return 1e-12 + (exact == 0 ? 0 : std::ldexp(0.51, std::ilogb(exact) - 23));
}

// Expects that every column of the row at `position` is right.
inline void ExpectExact(const Frequencies& frequencies, int64_t position, const RowRef& row) {
  ASSERT_EQ(row.page->columns(), static_cast<int64_t>(frequencies.inv_freq.size()));
  for (size_t j = 0; j < frequencies.inv_freq.size(); ++j) {
    const CosSin exact = ExactCosSin(position, frequencies.inv_freq[j], frequencies.multiplier);
    ASSERT_NEAR(row.page->Cos(row.index)[j], exact.cos, Tolerance(exact.cos)) << position;
    ASSERT_NEAR(row.page->Sin(row.index)[j], exact.sin, Tolerance(exact.sin)) << position;
  }
}

inline TokenRows Rows(TableCache& cache, const Frequencies& frequencies,
                      absl::Span<const int64_t> positions) {
  TokenRows rows;
  EXPECT_THAT(cache.AppendRows(frequencies, positions, rows), rope::testing::IsOk());
  EXPECT_EQ(rows.rows.size(), positions.size());
  return rows;
}

}  // namespace rope::kernels

#endif  // ROPE_TESTS_UNIT_KERNELS_TABLES_TABLE_ROWS_H_
