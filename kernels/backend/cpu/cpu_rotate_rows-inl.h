// The rows of tokens in the order of a Format (cpu_rotate-inl.h), for one instruction set: from
// pages, or composed of two rows of a table.
#if defined(ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_ROWS_INL_H_
#undef ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_ROWS_INL_H_
#else
#define ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_ROWS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/aligned_allocator.h"
#include "hwy/highway.h"
#include "kernels/backend/cpu/cpu_rotate-inl.h"
#include "kernels/backend/cpu/cpu_rotate_fused-inl.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace rope::kernels {
namespace HWY_NAMESPACE {
namespace {

// Prepared rows of one block of tokens; stays in the first-level cache.
constexpr size_t kRowBlockBytes = 16 << 10;

// Memory for prepared rows: on the stack, unless one row is larger than kRowBlockBytes.
class RowBuffer {
 public:
  explicit RowBuffer(size_t floats) {
    if (floats > kRowBlockBytes / sizeof(float)) large_ = hwy::AllocateAligned<float>(floats);
  }
  float* get() { return large_ != nullptr ? large_.get() : small_; }

 private:
  HWY_ALIGN float small_[kRowBlockBytes / sizeof(float)];
  hwy::AlignedFreeUniquePtr<float[]> large_;
};

// ComposeRow (row_table.h) in vectors, with the same bits: no step is fused.
template <class Elements>
void ComposeVectors(const TableMove& move, size_t token, size_t pairs, float* to) {
  using Element = typename Elements::Element;
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  const auto* const from_c = reinterpret_cast<const Element*>(move.table->Cos(move.from[token]));
  const auto* const from_s = reinterpret_cast<const Element*>(move.table->Sin(move.from[token]));
  const auto* const to_c = reinterpret_cast<const Element*>(move.table->Cos(move.to[token]));
  const auto* const to_s = reinterpret_cast<const Element*>(move.table->Sin(move.to[token]));
  for (size_t i = 0; i < pairs; i += lanes) {
    i = HWY_MIN(i, pairs - lanes);  // the last vector may overlap the one before it
    const VF c = Elements::Load(from_c + i);
    const VF s = Elements::Load(from_s + i);
    const VF new_c = Elements::Load(to_c + i);
    const VF new_s = Elements::Load(to_s + i);
    const VF square = hn::Add(hn::Mul(c, c), hn::Mul(s, s));
    const VF composed_c = hn::Add(hn::Mul(new_c, c), hn::Mul(new_s, s));
    const VF composed_s = hn::Sub(hn::Mul(new_s, c), hn::Mul(new_c, s));
    hn::StoreU(hn::Div(composed_c, square), d, to + i);
    hn::StoreU(hn::Div(composed_s, square), d, to + pairs + i);
  }
}

// Prepares the row of a token that moves by a table.
template <class Format>
HWY_NOINLINE void PrepareMoved(const RotateJob& job, size_t token, float* to) {
  const auto pairs = static_cast<size_t>(job.geometry.pairs);
  RowBuffer composed(2 * pairs);
  float* const row = composed.get();
  const DType dtype = job.move->table->dtype;
  if (pairs < hn::Lanes(F32())) {
    ComposeRow(*job.move, static_cast<int64_t>(token), job.geometry.pairs, row);
  } else if (dtype == DType::kFloat32) {
    ComposeVectors<Float32Elements>(*job.move, token, pairs, row);
  } else if (dtype == DType::kFloat16) {
    ComposeVectors<Float16Elements>(*job.move, token, pairs, row);
  } else {
    ComposeVectors<BFloat16Elements>(*job.move, token, pairs, row);
  }
  Format::PrepareRow({row, row + pairs, pairs, job.conjugate ? -1.0f : 1.0f}, to);
}

template <class Format>
HWY_INLINE void PrepareToken(const RotateJob& job, int64_t token, float* to) {
  if (job.move) return PrepareMoved<Format>(job, static_cast<size_t>(token), to);
  const RowRef& ref = job.rows[static_cast<size_t>(token)];
  Format::PrepareRow({ref.page->Cos(ref.index), ref.page->Sin(ref.index),
                      static_cast<size_t>(job.geometry.pairs), job.conjugate ? -1.0f : 1.0f},
                     to);
}

// Number of floats in a token's prepared row.
template <class Format>
size_t RowFloats(const RotateJob& job) {
  const size_t step = Format::PairsPerStep();
  const size_t steps = (static_cast<size_t>(job.geometry.pairs) + step - 1) / step;
  return HWY_MAX(steps, 1) * step * Format::kRowFloatsPerPair;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace rope::kernels
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_ROWS_INL_H_
