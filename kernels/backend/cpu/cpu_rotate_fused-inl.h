// How a job lies in memory, and what is prefetched of it; the rows of tokens in the order of a
// Format (cpu_rotate-inl.h), from pages or composed of two rows of a table; and one head of a job
// with fused ops (norm, scales, another output dtype) or another arithmetic, for one instruction
// set. RotateFused (cpu_rotate_loops-inl.h) runs these steps for each head, in a buffer that stays
// in the first-level cache:
//   1. WidenHead: copies the head to `raw` and widens it to floats in `values`
//   2. NormaliseHead: scales `values` by the norm's factor and weights
//   3. RotateHead: rotates `values` in place
//   4. NarrowHead: scales, divides and rounds `values` once, into `rounded`
//   5. copies `rounded` to the output; without fused ops, channels outside the pairs come from
//      `raw`
#if defined(ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_FUSED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_FUSED_INL_H_
#undef ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_FUSED_INL_H_
#else
#define ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_FUSED_INL_H_
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/aligned_allocator.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/backend/cpu/cpu_rotate-inl.h"
#include "kernels/backend/cpu/cpu_rotate_function.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace rope::kernels {
namespace HWY_NAMESPACE {
namespace {

// Distance at which input is prefetched: the hardware's prefetching stops at every memory page.
constexpr size_t kInputAheadBytes = 4096;

// A job in units of one element type.
template <class Element>
struct View {
  explicit View(const RotateJob& job)
      : input(static_cast<const Element*>(job.input)),
        output(static_cast<Element*>(job.output)),
        input_strides(job.input_strides),
        output_strides(job.output_strides),
        in_place(job.input == job.output),
        pairs(static_cast<size_t>(job.geometry.pairs)),
        offset(static_cast<size_t>(job.geometry.offset)),
        partner(static_cast<size_t>(job.geometry.partner)),
        head_dim(static_cast<size_t>(job.head_dim)),
        copies(!in_place && 2 * pairs != head_dim) {}

  const Element* Input(int64_t token, int64_t head) const {
    return input + token * input_strides.token + head * input_strides.head;
  }
  Element* Output(int64_t token, int64_t head) const {
    return output + token * output_strides.token + head * output_strides.head;
  }
  View Layer(int64_t layer) const {
    View view = *this;
    view.input += layer * input_strides.layer;
    view.output += layer * output_strides.layer;
    return view;
  }

  const Element* input;
  Element* output;
  Strides input_strides;
  Strides output_strides;
  bool in_place;
  size_t pairs;
  size_t offset;
  size_t partner;
  size_t head_dim;
  bool copies;  // whether channels outside the pairs must be copied to the output
};

// How far ahead a run of tokens prefetches its input. Its last tokens prefetch what is read after
// the run: a page of a cache is followed by another one's, elsewhere.
class Ahead {
 public:
  // `next`: null if it is unknown. The last tokens then prefetch nothing.
  template <class Element>
  Ahead(const View<Element>& view, int64_t token_end, int64_t head, const void* next)
      : last_(token_end) {
    const int64_t token_elements = HWY_MAX(view.input_strides.token, 1);
    last_ -= static_cast<int64_t>(kInputAheadBytes / sizeof(Element)) / token_elements;
    if (next == nullptr) return;
    jump_ = reinterpret_cast<uintptr_t>(next) -
            reinterpret_cast<uintptr_t>(view.Input(token_end, head)) + kInputAheadBytes;
  }
  size_t Of(int64_t token) const { return token < last_ ? kInputAheadBytes : jump_; }

 private:
  int64_t last_;  // the first of the last tokens
  size_t jump_ = 0;
};

template <class Element>
HWY_INLINE void PrefetchStep(const Element* a, const Element* b, size_t bytes_ahead) {
  hwy::Prefetch(reinterpret_cast<const uint8_t*>(a) + bytes_ahead);
  hwy::Prefetch(reinterpret_cast<const uint8_t*>(b) + bytes_ahead);
}

HWY_INLINE void CopyBytes(const void* from, void* to, size_t begin, size_t end) {
  if (begin >= end) return;
  std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, end - begin);
}

// Copies the channels of a head outside the pairs. A channel has `bytes`.
template <Pairing kPairing, class Element>
HWY_INLINE void CopyUnrotated(const View<Element>& view, const void* from, void* to,
                              size_t bytes = sizeof(Element)) {
  CopyBytes(from, to, 0, view.offset * bytes);
  if constexpr (kPairing == Pairing::kHalf) {
    const size_t second = view.offset + view.partner;
    CopyBytes(from, to, (view.offset + view.pairs) * bytes, second * bytes);
    CopyBytes(from, to, (second + view.pairs) * bytes, view.head_dim * bytes);
  } else {
    CopyBytes(from, to, (view.offset + 2 * view.pairs) * bytes, view.head_dim * bytes);
  }
}

struct BFloat16Elements {
  using Element = uint16_t;
  static HWY_INLINE VF Load(const uint16_t* from) {
    const hn::Rebind<uint16_t, F32> narrow;
    return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), hn::LoadU(narrow, from))));
  }
  // Rounds to nearest even. The result is in the upper half of each lane.
  static HWY_INLINE VU RoundedBits(VF v) {
    const U32 du;
    const VU bits = hn::BitCast(du, v);
    const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
    const VU rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
    const auto is_nan = hn::MaskFromVec(hn::BitCast(du, hn::VecFromMask(F32(), hn::IsNaN(v))));
    return hn::IfThenElse(is_nan, hn::Set(du, 0x7fc00000u), rounded);
  }
  static HWY_INLINE VF Rounded(VF v) {
    return hn::BitCast(F32(), hn::And(RoundedBits(v), hn::Set(U32(), 0xffff0000u)));
  }
  template <bool kStream>
  static HWY_INLINE size_t Store(VF v, uint16_t* to) {
    // The narrowing instruction is signed and saturates. After the arithmetic shift every value
    // fits.
    const hn::Rebind<int32_t, F32> d32;
    const hn::Rebind<uint16_t, F32> narrow;
    const hn::Rebind<int16_t, F32> d16;
    const auto upper = hn::DemoteTo(d16, hn::ShiftRight<16>(hn::BitCast(d32, RoundedBits(v))));
    StoreTo<kStream>(narrow, hn::BitCast(narrow, upper), to);
    return 0;
  }
};

// The memory of one head, and the weights of the norm. Arrays are padded to whole vectors. `raw`
// and `weight` are 0 past head_dim, so that padding does not change the norm.
struct HeadBuffer {
  explicit HeadBuffer(const RotateJob& job)
      : head_dim(static_cast<size_t>(job.head_dim)),
        padded((head_dim + hn::Lanes(F32()) - 1) / hn::Lanes(F32()) * hn::Lanes(F32())),
        raw(hwy::AllocateAligned<float>(HWY_MAX(padded, 1))),
        values(hwy::AllocateAligned<float>(HWY_MAX(padded, 1))),
        rounded(hwy::AllocateAligned<float>(HWY_MAX(padded, 1))),
        weight(hwy::AllocateAligned<float>(HWY_MAX(padded, 1))) {
    std::memset(raw.get(), 0, padded * sizeof(float));
    for (size_t i = 0; i < padded; ++i) weight[i] = i < head_dim ? 1.0f : 0.0f;
    if (job.norm && job.norm->weight != nullptr) {
      std::memcpy(weight.get(), job.norm->weight, head_dim * sizeof(float));
    }
  }

  size_t head_dim;
  size_t padded;
  hwy::AlignedFreeUniquePtr<float[]> raw;      // input elements
  hwy::AlignedFreeUniquePtr<float[]> values;   // floats
  hwy::AlignedFreeUniquePtr<float[]> rounded;  // output elements
  hwy::AlignedFreeUniquePtr<float[]> weight;   // the norm's weights, or 1
};

template <class Elements>
HWY_INLINE void WidenHead(const uint8_t* from, const HeadBuffer& buffer) {
  using Element = typename Elements::Element;
  std::memcpy(buffer.raw.get(), from, buffer.head_dim * sizeof(Element));
  const auto* raw = reinterpret_cast<const Element*>(buffer.raw.get());
  for (size_t i = 0; i < buffer.padded; i += hn::Lanes(F32())) {
    hn::Store(Elements::Load(raw + i), F32(), buffer.values.get() + i);
  }
}

// The sum of squares is in double, because the square of a float is exact there.
HWY_INLINE void NormaliseHead(float eps, const HeadBuffer& buffer) {
  const hn::ScalableTag<double> dd;
  const hn::Rebind<float, hn::ScalableTag<double> > narrow;
  const F32 d;
  auto squares = hn::Zero(dd);
  for (size_t i = 0; i < buffer.padded; i += hn::Lanes(dd)) {
    const auto x = hn::PromoteTo(dd, hn::Load(narrow, buffer.values.get() + i));
    squares = hn::MulAdd(x, x, squares);
  }
  const double sum = hn::GetLane(hn::SumOfLanes(dd, squares));
  const double rms = std::sqrt(sum / static_cast<double>(buffer.head_dim) + eps);
  const VF factor = hn::Set(d, static_cast<float>(1.0 / rms));
  for (size_t i = 0; i < buffer.padded; i += hn::Lanes(d)) {
    const VF x = hn::Mul(hn::Load(d, buffer.values.get() + i), factor);
    hn::Store(hn::Mul(x, hn::Load(d, buffer.weight.get() + i)), d, buffer.values.get() + i);
  }
}

// Scales a head, divides it by `divisor` and rounds it once. Returns the number of elements that
// saturate.
template <class Elements>
HWY_INLINE size_t NarrowHead(float scale, float divisor, const HeadBuffer& buffer) {
  using Element = typename Elements::Element;
  const F32 d;
  auto* const rounded = reinterpret_cast<Element*>(buffer.rounded.get());
  const VF scales = hn::Set(d, scale);
  const VF divisors = hn::Set(d, divisor);
  size_t saturated = 0;
  for (size_t i = 0; i < buffer.padded; i += hn::Lanes(d)) {
    const VF v = hn::Div(hn::Mul(hn::Load(d, buffer.values.get() + i), scales), divisors);
    saturated += Elements::template Store<false>(v, rounded + i);
  }
  return saturated;
}

HWY_INLINE void WidenHead(const RotateJob& job, const uint8_t* from, const HeadBuffer& buffer) {
  if (job.dtype == DType::kFloat8E4M3) return WidenHead<Float8E4M3Elements>(from, buffer);
  if (job.dtype == DType::kFloat8E5M2) return WidenHead<Float8E5M2Elements>(from, buffer);
  if (job.dtype == DType::kFloat16) return WidenHead<Float16Elements>(from, buffer);
  if (job.dtype == DType::kBFloat16) return WidenHead<BFloat16Elements>(from, buffer);
  WidenHead<Float32Elements>(from, buffer);
}

HWY_INLINE size_t NarrowHead(const RotateJob& job, float scale, const HeadBuffer& buffer) {
  const float divisor = job.output_scale;
  switch (job.stored()) {
    case DType::kFloat32:
      return NarrowHead<Float32Elements>(scale, divisor, buffer);
    case DType::kFloat16:
      return NarrowHead<Float16Elements>(scale, divisor, buffer);
    case DType::kBFloat16:
      return NarrowHead<BFloat16Elements>(scale, divisor, buffer);
    case DType::kFloat8E4M3:
      return NarrowHead<Float8E4M3Elements>(scale, divisor, buffer);
    case DType::kFloat8E5M2:
      break;
  }
  return NarrowHead<Float8E5M2Elements>(scale, divisor, buffer);
}

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
  if (pairs < hn::Lanes(F32())) {
    ComposeRow(*job.move, static_cast<int64_t>(token), job.geometry.pairs, row);
  } else if (job.move->table->dtype == DType::kFloat32) {
    ComposeVectors<Float32Elements>(*job.move, token, pairs, row);
  } else if (job.move->table->dtype == DType::kFloat16) {
    ComposeVectors<Float16Elements>(*job.move, token, pairs, row);
  } else {
    ComposeVectors<BFloat16Elements>(*job.move, token, pairs, row);
  }
  Format::PrepareRow({row, row + pairs, pairs, job.conjugate ? -1.0f : 1.0f}, to);
}

template <class Format>
HWY_INLINE void PrepareToken(const RotateJob& job, int64_t token, float* to) {
  if (job.geometry.pairs == 0) return;
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

#endif  // ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_FUSED_INL_H_
