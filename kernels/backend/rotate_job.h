// RotateJob: one rectangle of (token, head) vectors to rotate, of one layer or of several at equal
// distances. A view: it owns nothing.
#ifndef ROPE_KERNELS_BACKEND_ROTATE_JOB_H_
#define ROPE_KERNELS_BACKEND_ROTATE_JOB_H_

#include <atomic>
#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "kernels/dtype/dtype.h"
#include "kernels/tables/row_table.h"
#include "kernels/tables/table_page.h"

namespace rope::kernels {

// Distances in elements between neighbouring tokens, heads and layers. The channels of a head are
// always adjacent.
struct Strides {
  int64_t token = 0;
  int64_t head = 0;
  int64_t layer = 0;
};

// The channels of each pair. Pair i of `pairs`:
//   half:        channels offset + i           and offset + i + partner
//   interleaved: channels offset + 2 * i       and offset + 2 * i + 1
// Channels outside the pairs are copied bit for bit, unless the job has fused ops.
struct PairGeometry {
  Pairing pairing = Pairing::kHalf;
  int64_t pairs = 0;    // the columns of the rows
  int64_t offset = 0;   // first rotated channel
  int64_t partner = 0;  // half only: rotary_dim / 2, >= pairs

  // Whether the channel belongs to a pair.
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

// Outputs above this size do not stay in the caches until somebody reads them.
inline constexpr int64_t kCachedBytesMax = 4 << 20;

// For each token t, head h and pair (a, b), with c and s from rows[t] (s negated if `conjugate`):
//   a' = a * c - b * s,   b' = b * c + a * s
// `arithmetic` may replace this formula. Fused ops apply to all channels of the head, including
// those outside the pairs: first the norm, then the rotation, then a multiplication by scale and
// token_scales[t], a division by output_scale, and rounding to stored().
struct RotateJob {
  const void* input = nullptr;  // any alignment
  // Either equal to `input`, with equal strides and dtypes (in place), or not overlapping it.
  void* output = nullptr;
  Strides input_strides;
  Strides output_strides;  // in elements of stored()
  int64_t tokens = 0;      // of a layer
  int64_t heads = 0;
  int64_t layers = 1;  // with the same rows
  int64_t head_dim = 0;
  DType dtype = DType::kFloat32;  // the input's; not fp8 with kTurnStepwise
  PairGeometry geometry;
  bool conjugate = false;
  PairArithmetic arithmetic = PairArithmetic::kTurn;  // kTurnStepwise excludes a norm
  // One per token, each with geometry.pairs columns. Not read if the job has no pairs.
  absl::Span<const RowRef> rows;
  // Set: rows that are composed while the tokens rotate, one per token, in place of `rows`.
  std::optional<TableMove> move = {};
  // The output is a part of more than kCachedBytesMax. If it is not in place, a CPU writes it past
  // the caches, and so does not read its lines first.
  bool streams = false;

  // Fused ops.
  std::optional<RmsNorm> norm = {};
  float scale = 1;                            // finite
  absl::Span<const float> token_scales = {};  // one per token, in host memory; empty: 1
  std::optional<DType> output_dtype = {};     // unset: the input's dtype
  float output_scale = 1;                     // finite, above 0

  // Null, or counts the elements of an fp8 output that are beyond its largest finite number before
  // they are rounded: infinities are, NaN and channels that are copied are not. Jobs may share it.
  // A cuda backend does not count.
  std::atomic<int64_t>* saturated = nullptr;

  // Whether the tokens [begin, end) share one row, or need none.
  bool SharesRow(int64_t begin, int64_t end) const {
    if (geometry.pairs == 0) return true;
    const auto first = static_cast<size_t>(begin);
    for (size_t token = first + 1; token < static_cast<size_t>(end); ++token) {
      const bool same =
          move ? move->from[token] == move->from[first] && move->to[token] == move->to[first]
               : rows[token].page == rows[first].page && rows[token].index == rows[first].index;
      if (!same) return false;
    }
    return true;
  }
  DType stored() const { return output_dtype.value_or(dtype); }
  // Whether the job has no fused ops. Channels outside the pairs are then copied.
  bool OnlyPairs() const {
    return !norm && scale == 1 && token_scales.empty() && stored() == dtype && output_scale == 1;
  }
  // Whether the job is a plain rotation in float32, the case that backends optimise.
  bool OnlyTurns() const { return arithmetic == PairArithmetic::kTurn && OnlyPairs(); }
  // Adds to `saturated`.
  void AddSaturated(int64_t elements) const {
    if (saturated == nullptr || elements == 0) return;
    saturated->fetch_add(elements, std::memory_order_relaxed);
  }
  // The job of one of its layers.
  RotateJob Layer(int64_t layer) const {
    RotateJob job = *this;
    job.layers = 1;
    job.input = static_cast<const char*>(input) + layer * input_strides.layer * ElementBytes(dtype);
    job.output = static_cast<char*>(output) + layer * output_strides.layer * ElementBytes(stored());
    return job;
  }
  // Bytes of the input.
  int64_t bytes() const { return layers * tokens * heads * head_dim * ElementBytes(dtype); }
};

// A rectangle of tokens, heads and layers of one job.
struct RotateRange {
  int64_t token_begin = 0;
  int64_t token_end = 0;
  int64_t head_begin = 0;
  int64_t head_end = 0;
  int64_t layer_begin = 0;
  int64_t layer_end = 1;
  const void* next = nullptr;  // the input that the thread reads after the range; null: unknown
};

// CheckJob: checks the preconditions that all backends rely on.
//
// Threading:  Any thread.
// Errors:     None. A malformed job is a bug of the caller and stops the process.

// Checks sizes, that all pairs are inside the head, and, if there are any, that each token has one
// row of `pairs` columns.
void CheckJob(const RotateJob& job);

// Puts the channels of rotated pairs into another order.
//
// Threading:  A pure function; any thread.

// Moves the channels of the job's window, in its output, from the order of its pairing to `order`.
// half: the first channels of all pairs, then the second ones. interleaved: the two of each pair,
// one after the other. Nothing moves if the job does not rotate or has that order. REQUIRES: the
// job has run; its output is in host memory; geometry.partner is half of the window.
void ReorderPairs(const RotateJob& job, Pairing order);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_ROTATE_JOB_H_
