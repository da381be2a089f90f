// RowTable: the table of cos and sin that an engine keeps, where it is, and moves by it.
//
// Threading:  Values and pure functions; any thread. The owner of the memory may write to it at any
//             time: a row is read again each time it is used.
// Ownership:  Views.
#ifndef ROPE_KERNELS_TABLES_ROW_TABLE_H_
#define ROPE_KERNELS_TABLES_ROW_TABLE_H_

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/dtype/dtype.h"

namespace rope::kernels {

struct RowTable {
  const char* cos = nullptr;  // of row 0; any alignment
  const char* sin = nullptr;
  DType dtype = DType::kFloat32;  // no fp8
  int64_t row_bytes = 0;          // from a row to the next

  const char* Cos(int64_t row) const { return cos + row * row_bytes; }
  const char* Sin(int64_t row) const { return sin + row * row_bytes; }
};

// Moves of some tokens: what row from[t] has done to token t is undone, and row to[t] is applied.
struct TableMove {
  const RowTable* table = nullptr;
  absl::Span<const int64_t> from = {};  // one for each token
  absl::Span<const int64_t> to = {};
};

// The rotation of one pair that undoes (c, s) and applies (to_c, to_s). The inverse of a rotation
// with a factor is its transpose, divided by c * c + s * s: rounding to few bits gives each row a
// factor. All steps are in float32, each rounded.
struct ComposedPair {
  float c;
  float s;
};
inline ComposedPair Compose(float c, float s, float to_c, float to_s) {
  const float square = c * c + s * s;
  return {(to_c * c + to_s * s) / square, (to_s * c - to_c * s) / square};
}

// Whether the rows [row, row + rows) can be undone: |c| and |s| of each of their pairs are below
// 2^63, and one of them is at least 2^-63, so that c * c + s * s is a normal float32.
bool CanBeUndone(const RowTable& table, int64_t row, int64_t rows, int64_t pairs);

// Row `token` of a move as `pairs` cosines, then as many sines.
void ComposeRow(const TableMove& move, int64_t token, int64_t pairs, float* row);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_TABLES_ROW_TABLE_H_
