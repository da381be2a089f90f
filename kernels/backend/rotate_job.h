// RotateJob: one rectangle of (token, head) vectors to rotate. A view: it owns nothing.
#ifndef ROPE_KERNELS_BACKEND_ROTATE_JOB_H_
#define ROPE_KERNELS_BACKEND_ROTATE_JOB_H_

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "kernels/dtype/dtype.h"
#include "kernels/dtype/pairing.h"
#include "kernels/tables/table_page.h"

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
// Channels outside every pair are copied bit for bit, unless something is done beside the rotation.
struct PairGeometry {
  Pairing pairing = Pairing::kHalf;
  int64_t pairs = 0;    // the columns of the rows
  int64_t offset = 0;   // first rotated channel
  int64_t partner = 0;  // half only: rotary_dim / 2, >= pairs

  // Whether a pair has this channel.
  bool Holds(int64_t channel) const {
    const int64_t second = offset + (pairing == Pairing::kHalf ? partner : pairs);
    return (channel >= offset && channel < offset + pairs) ||
           (channel >= second && channel < second + pairs);
  }
};

// RMS norm over all channels of a head: x * weight / sqrt(mean(x * x) + eps).
struct RmsNorm {
  const float* weight = nullptr;  // [head_dim], in host memory; null: 1
  float eps = 0;                  // finite, above 0
};

// For each token t, head h and pair (a, b), with c and s of rows[t] (s negated where `conjugate`),
// unless `arithmetic` says otherwise:
//   a' = a * c - b * s,   b' = b * c + a * s
// Beside that, where a job asks for it and for all channels of the head, those outside the pairs
// too: the norm comes first; the result is multiplied by scale and token_scales[t], divided by
// output_scale, and then rounded to stored().
struct RotateJob {
  const void* input = nullptr;  // any alignment
  // Equal to input with equal strides and dtypes (in place), or not overlapping it.
  void* output = nullptr;
  Strides input_strides;
  Strides output_strides;  // in elements of stored()
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  DType dtype = DType::kFloat32;  // of the input; no fp8
  PairGeometry geometry;
  bool conjugate = false;
  PairArithmetic arithmetic = PairArithmetic::kTurn;  // kTurnStepwise: not with a norm
  absl::Span<const RowRef> rows;  // one for each token, each with geometry.pairs columns

  // Beside the rotation.
  std::optional<RmsNorm> norm = {};
  float scale = 1;                            // finite
  absl::Span<const float> token_scales = {};  // one for each token, in host memory; empty: 1
  std::optional<DType> output_dtype = {};     // none: that of the input
  float output_scale = 1;                     // finite, above 0

  DType stored() const { return output_dtype.value_or(dtype); }
  // Whether there is nothing beside the rotation: channels outside the pairs are copied.
  bool OnlyPairs() const {
    return !norm && scale == 1 && token_scales.empty() && stored() == dtype && output_scale == 1;
  }
  // What backends are made for: the rotation in float32 alone.
  bool OnlyTurns() const { return arithmetic == PairArithmetic::kTurn && OnlyPairs(); }
  // Of the input.
  int64_t bytes() const { return tokens * heads * head_dim * ElementBytes(dtype); }
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_ROTATE_JOB_H_
