// Rows of three-axis positions (mrope), gathered from rows of the table cache.
//
// Threading:  Any thread.
// Ownership:  As TableCache: rows keep their pages alive.
// Errors:     As TableCache::AppendRows.
#ifndef ROPE_KERNELS_TABLES_MROPE_ROWS_H_
#define ROPE_KERNELS_TABLES_MROPE_ROWS_H_

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/config/rope_config.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/tables/table_cache.h"
#include "kernels/tables/table_page.h"

namespace rope::kernels {

// Appends the row of each token to `rows`. Frequency j of token i uses position
// positions[AxisOf(mrope, j)][i]. A token with three equal positions shares the cache's row; the
// other tokens get rows built for this call. `build_budget` and the result are those of
// TableCache::AppendRows; each axis has an equal part of the budget, and what others have left.
// REQUIRES: three spans of equal length, every position in [-2^30, 2^30].
absl::StatusOr<int64_t> AppendMropeRows(TableCache& cache, const Frequencies& frequencies,
                                        const Mrope& mrope,
                                        absl::Span<const absl::Span<const int64_t>> positions,
                                        int64_t& build_budget, TokenRows& rows);
// The same for all tokens.
inline absl::Status AppendMropeRows(TableCache& cache, const Frequencies& frequencies,
                                    const Mrope& mrope,
                                    absl::Span<const absl::Span<const int64_t>> positions,
                                    TokenRows& rows) {
  int64_t build_budget = std::numeric_limits<int64_t>::max();
  return AppendMropeRows(cache, frequencies, mrope, positions, build_budget, rows).status();
}

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_TABLES_MROPE_ROWS_H_
