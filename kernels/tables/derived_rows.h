// Rows that are made for one call: of three axes of positions, and of differences between
// positions.
#ifndef ROPE_KERNELS_TABLES_DERIVED_ROWS_H_
#define ROPE_KERNELS_TABLES_DERIVED_ROWS_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/config/rope_config.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/tables/table_cache.h"
#include "kernels/tables/table_page.h"

namespace rope::kernels {

// Rows of three-axis positions (mrope), gathered from rows of the table cache.
//
// Threading:  Any thread.
// Ownership:  As TableCache: rows keep their pages alive.
// Errors:     As TableCache::AppendRows.

// Appends the row of each token to `rows`. Frequency j of token i uses position
// positions[AxisOf(mrope, j)][i]. A token with three equal positions shares the cache's row; the
// other tokens get rows built for this call. `build_budget` and the result are those of
// TableCache::AppendRows; each axis has an equal part of the budget, and what others have left.
// REQUIRES: three spans of equal length, every position in [-2^30, 2^30].
absl::StatusOr<int64_t> AppendMropeRows(TableCache& cache, const Frequencies& frequencies,
                                        const Mrope& mrope,
                                        absl::Span<const absl::Span<const int64_t>> positions,
                                        int64_t& build_budget, TokenRows& rows);

// Rows that move rotated vectors from one position, or one embedding, to another.
//
// Pair j rotates by to.position * to.inv_freq[j] - from.position * from.inv_freq[j]. This is one
// rotation instead of an inverse one followed by a forward one, so no intermediate result is
// rounded. If both embeddings are equal, use TableCache::AppendRows with the difference of the
// positions instead: it accepts negative positions and its rows are shared.
//
// Threading:  Pure functions.
// Precision:  Each angle has the precision of ExactCosSin. Their difference is right to 1e-15 and
//             is stored as the nearest float32.

// The embedding and the positions of vectors, before or after a move.
struct RowPlacement {
  absl::Span<const InverseFrequency> inv_freq;  // [rotary_dim/2], zeros included
  // Positions by token, each in [0, 2^30]. Frequency j uses positions[AxisOf(*mrope, j)], or
  // positions[0] if mrope is null.
  std::array<absl::Span<const int64_t>, 3> positions;
  const Mrope* mrope = nullptr;
};

// The angle position * inv_freq.
struct PositionAngle {
  int64_t position = 0;
  InverseFrequency inv_freq = 0;
};

// cos and sin of to - from, right to 1e-15. REQUIRES: as ExactCosSin, of both.
CosSin CosSinOfDifference(const PositionAngle& to, const PositionAngle& from);

// Appends one row per token to `rows`, multiplied by `multiplier`. The rows are in one new page.
// REQUIRES: both placements have the same number of frequencies and of tokens.
void AppendDifferenceRows(const RowPlacement& to, const RowPlacement& from, double multiplier,
                          TokenRows& rows);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_TABLES_DERIVED_ROWS_H_
