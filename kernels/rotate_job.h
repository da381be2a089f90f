// RotateJob: one rectangle of (token, head) vectors to rotate. A view: it owns nothing.
#ifndef ROPE_KERNELS_ROTATE_JOB_H_
#define ROPE_KERNELS_ROTATE_JOB_H_

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/dtype.h"
#include "kernels/table_page.h"

namespace rope::kernels {

// Distances in elements between neighbouring tokens and heads; channels of a head are always
// adjacent.
struct Strides {
  int64_t token = 0;
  int64_t head = 0;
};

// Which channels of a head turn. Pair i of `pairs`:
//   half:        channels offset + i           and offset + i + partner
//   interleaved: channels offset + 2 * i       and offset + 2 * i + 1
// Channels outside every pair are copied bit for bit.
struct PairGeometry {
  Pairing pairing = Pairing::kHalf;
  int64_t pairs = 0;    // the columns of the rows
  int64_t offset = 0;   // first rotated channel
  int64_t partner = 0;  // half only: rotary_dim / 2, >= pairs
};

// For each token t, head h and pair (a, b), with c and s of rows[t] (s negated where `conjugate`):
//   a' = a * c - b * s,   b' = b * c + a * s
struct RotateJob {
  const void* input = nullptr;  // any alignment
  void* output = nullptr;  // equal to input with equal strides (in place), or not overlapping it
  Strides input_strides;
  Strides output_strides;
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  DType dtype = DType::kFloat32;
  PairGeometry geometry;
  bool conjugate = false;
  absl::Span<const RowRef> rows;  // one for each token, each with geometry.pairs columns

  int64_t bytes() const { return tokens * heads * head_dim * ElementBytes(dtype); }
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_ROTATE_JOB_H_
