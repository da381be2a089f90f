// Rows that are made for one call: of three axes of positions, of differences between positions,
// and in double.
#ifndef ROPE_KERNELS_TABLES_DERIVED_ROWS_H_
#define ROPE_KERNELS_TABLES_DERIVED_ROWS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/config/rope_config.h"
#include "kernels/dtype/dtype.h"
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

// Appends one row per token to `rows`, multiplied by `multiplier`. The rows are in one new page.
// REQUIRES: both placements have the same number of frequencies and of tokens.
void AppendDifferenceRows(const RowPlacement& to, const RowPlacement& from, double multiplier,
                          TokenRows& rows);

// Rows in double: for programs that keep tables of their own, and for Describe.
//
//   RowSource --ReadRow(position)--> cos and sin in double --WriteRow--> arrays of a layout
//
// Threading:  Pure functions; any thread.
// Precision:  cos and sin are the exact values of the formulas, rounded once to double; those of a
//             move between two embeddings are right to 1e-15. WriteRow rounds them once more, to
//             nearest.

// What the rows of a table are.
struct RowSource {
  // Of ForSeqLen: rows of positions. Of ForDifferences: rows of differences of positions.
  std::shared_ptr<const Frequencies> frequencies;
  // Null, except for moves between two embeddings: column j then turns by position * inv_freq[j] of
  // `frequencies` minus from_position * inv_freq[j] of `from`. Both are of ForDifferences.
  std::shared_ptr<const Frequencies> from = nullptr;
  double multiplier = 1;  // of moves between two embeddings
  int64_t columns = 0;    // rotary_dim/2; columns that `frequencies` omits do not turn
};

// Replaces `row` by the columns of one row. `from_position` is used if source.from is set.
void ReadRow(const RowSource& source, int64_t position, int64_t from_position,
             std::vector<CosSin>& row);

// The layouts of rows with n columns.
enum class RowLayout {
  kCosSin,       // two arrays [rows, n]: cos, sin
  kCosSinCache,  // one array [rows, 2n]: n cosines, then n sines
  kDuplicated,   // two arrays [rows, 2n]: cos, sin, each row's n numbers twice
  kComplex,      // one array [rows, n, 2]: cos and sin of each column
};

struct RowFormat {
  RowLayout layout = RowLayout::kCosSin;
  std::optional<DType> dtype = {};  // fp32, fp16 or bf16; unset: double
};

// The number of arrays: 1 or 2.
int ArraysOf(RowLayout layout);
// The shape of a row in each array: without the axis of rows.
std::vector<int64_t> RowShape(RowLayout layout, int64_t columns);
// Bytes of a row in each array.
int64_t RowBytes(const RowFormat& format, int64_t columns);

// Writes a row, little-endian, to out[0] and, with two arrays, out[1].
// REQUIRES: RowBytes(format, row.size()) bytes at each.
void WriteRow(const RowFormat& format, absl::Span<const CosSin> row,
              const std::array<char*, 2>& out);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_TABLES_DERIVED_ROWS_H_
