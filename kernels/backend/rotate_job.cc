#include "kernels/backend/rotate_job.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/check.h"

namespace rope::kernels {

void CheckJob(const RotateJob& job) {
  ROPE_CHECK(job.tokens >= 0 && job.heads >= 0 && job.head_dim >= 0);
  ROPE_CHECK(job.layers >= 1);
  if (job.tokens == 0 || job.heads == 0) return;
  ROPE_CHECK(job.input != job.output || job.stored() == job.dtype);
  // A norm produces float32 numbers, but the steps of kTurnStepwise start from the tensor's dtype.
  // No library computes in fp8.
  ROPE_CHECK(job.arithmetic != PairArithmetic::kTurnStepwise ||
             (!job.norm && !IsFloat8(job.dtype)));
  ROPE_CHECK(!job.norm || (std::isfinite(job.norm->eps) && job.norm->eps > 0));
  ROPE_CHECK(std::isfinite(job.scale));
  ROPE_CHECK(job.token_scales.empty() ||
             static_cast<int64_t>(job.token_scales.size()) == job.tokens);
  ROPE_CHECK(std::isfinite(job.output_scale) && job.output_scale > 0);
  const PairGeometry& geometry = job.geometry;
  ROPE_CHECK(job.input != nullptr && job.output != nullptr);
  ROPE_CHECK(geometry.pairs >= 0 && geometry.offset >= 0);
  if (geometry.pairing == Pairing::kHalf) {
    ROPE_CHECK(geometry.partner >= geometry.pairs);
    ROPE_CHECK(geometry.offset + geometry.partner + geometry.pairs <= job.head_dim);
  } else {
    ROPE_CHECK(geometry.offset + 2 * geometry.pairs <= job.head_dim);
  }
  if (job.move) {
    ROPE_CHECK(static_cast<int64_t>(job.move->from.size()) == job.tokens &&
               job.move->to.size() == job.move->from.size());
    return;
  }
  ROPE_CHECK(geometry.pairs == 0 || static_cast<int64_t>(job.rows.size()) == job.tokens);
  for (const RowRef& row : job.rows) {
    ROPE_CHECK(row.page != nullptr && row.page->columns() == geometry.pairs);
    ROPE_CHECK(row.index >= 0 && row.index < row.page->rows());
  }
}

namespace {

// Reorders window by window. Word has the size of an element; the loops run over aligned copies, so
// that compilers use SIMD instructions for them.
template <typename Word>
void Reorder(const RotateJob& job, Pairing order) {
  const auto pairs = static_cast<size_t>(job.geometry.partner);
  const size_t bytes = 2 * pairs * sizeof(Word);
  std::vector<Word> before(2 * pairs);
  std::vector<Word> after(2 * pairs);
  for (int64_t token = 0; token < job.tokens; ++token) {
    for (int64_t head = 0; head < job.heads; ++head) {
      const int64_t first =
          token * job.output_strides.token + head * job.output_strides.head + job.geometry.offset;
      char* const window =
          static_cast<char*>(job.output) + first * static_cast<int64_t>(sizeof(Word));
      std::memcpy(before.data(), window, bytes);
      const Word* const from = before.data();
      Word* const to = after.data();
      if (order == Pairing::kHalf) {
        for (size_t i = 0; i < pairs; ++i) to[i] = from[2 * i];
        for (size_t i = 0; i < pairs; ++i) to[i + pairs] = from[2 * i + 1];
      } else {
        for (size_t i = 0; i < pairs; ++i) {
          to[2 * i] = from[i];
          to[2 * i + 1] = from[i + pairs];
        }
      }
      std::memcpy(window, to, bytes);
    }
  }
}

}  // namespace

void ReorderPairs(const RotateJob& job, Pairing order) {
  if (job.geometry.pairs == 0 || job.geometry.pairing == order) return;
  if (job.layers > 1) {
    for (int64_t layer = 0; layer < job.layers; ++layer) ReorderPairs(job.Layer(layer), order);
    return;
  }
  switch (ElementBytes(job.stored())) {
    case 1:
      return Reorder<uint8_t>(job, order);
    case 2:
      return Reorder<uint16_t>(job, order);
    default:
      ROPE_CHECK(ElementBytes(job.stored()) == 4);
      return Reorder<uint32_t>(job, order);
  }
}

}  // namespace rope::kernels
