// Rows of three-axis positions, out of those that the table cache holds.
//
// Threading:  Any thread.
// Ownership:  As TableCache: rows keep what they are in alive.
// Errors:     As TableCache::AppendRows.
#ifndef ROPE_KERNELS_TABLES_MROPE_ROWS_H_
#define ROPE_KERNELS_TABLES_MROPE_ROWS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/config/rope_config.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/tables/table_cache.h"
#include "kernels/tables/table_page.h"

namespace rope::kernels {

// Appends the row of each token to `rows`: frequency j of token i takes
// positions[mrope.Axis(j)][i]. Tokens whose three positions are equal share the cache's rows; the
// others get rows built for this call. REQUIRES: three spans of one length, every position in
// [-2^30, 2^30].
absl::Status AppendMropeRows(TableCache& cache, const Frequencies& frequencies, const Mrope& mrope,
                             absl::Span<const absl::Span<const int64_t>> positions,
                             TokenRows& rows);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_TABLES_MROPE_ROWS_H_
