// Rows in double, without a cache: for programs that keep tables of their own, and for Describe.
//
//   RowSource --ReadRow(position)--> cos and sin in double --WriteRow--> arrays of a layout
//
// Threading:  Pure functions; any thread.
// Precision:  cos and sin are the exact values of the formulas, rounded once to double; those of a
//             move between two embeddings are right to 1e-15. WriteRow rounds them once more, to
//             nearest.
#ifndef ROPE_KERNELS_TABLES_EXACT_ROWS_H_
#define ROPE_KERNELS_TABLES_EXACT_ROWS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "kernels/dtype/dtype.h"
#include "kernels/frequencies/cos_sin.h"
#include "kernels/frequencies/frequencies.h"

namespace rope::kernels {

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

#endif  // ROPE_KERNELS_TABLES_EXACT_ROWS_H_
