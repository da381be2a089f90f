#include "kernels/backend/rotate_job.h"

#include <cmath>

#include "kernels/check.h"

namespace rope::kernels {
namespace {

void CheckFusedOps(const RotateJob& job) {
  ROPE_CHECK(!IsFloat8(job.dtype));
  ROPE_CHECK(job.input != job.output || job.stored() == job.dtype);
  // A norm produces float32 numbers, but the steps of kTurnStepwise start from the tensor's dtype.
  ROPE_CHECK(job.arithmetic != PairArithmetic::kTurnStepwise || !job.norm);
  ROPE_CHECK(!job.norm || (std::isfinite(job.norm->eps) && job.norm->eps > 0));
  ROPE_CHECK(std::isfinite(job.scale));
  ROPE_CHECK(job.token_scales.empty() ||
             static_cast<int64_t>(job.token_scales.size()) == job.tokens);
  ROPE_CHECK(std::isfinite(job.output_scale) && job.output_scale > 0);
}

}  // namespace

void CheckJob(const RotateJob& job) {
  ROPE_CHECK(job.tokens >= 0 && job.heads >= 0 && job.head_dim >= 0);
  if (job.tokens == 0 || job.heads == 0) return;
  CheckFusedOps(job);
  const PairGeometry& geometry = job.geometry;
  ROPE_CHECK(job.input != nullptr && job.output != nullptr);
  ROPE_CHECK(geometry.pairs >= 0 && geometry.offset >= 0);
  if (geometry.pairing == Pairing::kHalf) {
    ROPE_CHECK(geometry.partner >= geometry.pairs);
    ROPE_CHECK(geometry.offset + geometry.partner + geometry.pairs <= job.head_dim);
  } else {
    ROPE_CHECK(geometry.offset + 2 * geometry.pairs <= job.head_dim);
  }
  ROPE_CHECK(static_cast<int64_t>(job.rows.size()) == job.tokens);
  for (const RowRef& row : job.rows) {
    ROPE_CHECK(row.page != nullptr && row.page->columns() == geometry.pairs);
    ROPE_CHECK(row.index >= 0 && row.index < row.page->rows());
  }
}

}  // namespace rope::kernels
