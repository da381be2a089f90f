// The Formats (cpu_rotate-inl.h) of bf16 elements. A 32-bit lane holds an even and an odd element.
// ROPE_NATIVE_BFLOAT16 is defined if the instruction set has AVX512_BF16 and AVX512_VBMI.
#if defined(ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_BFLOAT16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_BFLOAT16_INL_H_
#undef ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_BFLOAT16_INL_H_
#else
#define ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_BFLOAT16_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/backend/cpu/cpu_rotate-inl.h"
#include "kernels/dtype/dtype.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace rope::kernels {
namespace HWY_NAMESPACE {
namespace {

// Removes the payload of a NaN. Otherwise rounding by addition could carry a NaN into another
// number.
HWY_INLINE VF PlainNaN(VF v) {
#if defined(ROPE_NATIVE_BFLOAT16)
  return v;  // the conversion instructions handle NaN
#else
  return hn::IfThenElse(hn::IsNaN(v), hn::BitCast(F32(), hn::Set(U32(), 0x7fc00000u)), v);
#endif
}

HWY_INLINE VU LoadLanes(const uint16_t* from) {
  return hn::BitCast(U32(), hn::LoadU(U16(), from));
}
HWY_INLINE VF EvenElements(VU lanes) {
  return hn::BitCast(F32(), hn::ShiftLeft<16>(lanes));
}
HWY_INLINE VF OddElements(VU lanes) {
  return hn::BitCast(F32(), hn::And(lanes, hn::Set(U32(), 0xffff0000u)));
}

// StoreRounded rounds two vectors to bf16, to nearest even, and stores them interleaved. For half
// pairing the order inside a vector does not matter, so each target splits it in its cheapest way:
// FirstPart and SecondPart split a vector of elements, FirstOf and SecondOf split cosines or sines
// in the same way (`lower` belongs to the first elements), and StoreParts joins the parts again.
#if defined(ROPE_NATIVE_BFLOAT16)
// The parts are the lower and the upper half, in order. One byte permutation widens each, and the
// conversion instruction joins them. (A permutation of 16-bit lanes takes twice as long.)
struct ByteOrder {
  alignas(64) uint8_t from[64];
};

// Moves the elements from `begin` on to the upper halves of 32-bit lanes.
constexpr ByteOrder WideningOrder(size_t begin) {
  ByteOrder order = {};
  for (size_t i = 0; i < 16; ++i) {
    order.from[4 * i + 2] = static_cast<uint8_t>(2 * (begin + i));
    order.from[4 * i + 3] = static_cast<uint8_t>(2 * (begin + i) + 1);
  }
  return order;
}

// Interleaves the elements of the lower half with those of the upper half.
constexpr ByteOrder InterleavingOrder() {
  ByteOrder order = {};
  for (size_t i = 0; i < 32; ++i) {
    const size_t element = i / 2 + i % 2 * 16;
    order.from[2 * i] = static_cast<uint8_t>(2 * element);
    order.from[2 * i + 1] = static_cast<uint8_t>(2 * element + 1);
  }
  return order;
}

// Permutes bytes; a byte whose bit in `kept` is 0 becomes 0. (GCC 12 warns about the intrinsic
// without a mask.)
HWY_INLINE __m512i Permuted(__m512i bytes, const ByteOrder& order, __mmask64 kept) {
  return _mm512_maskz_permutexvar_epi8(kept, _mm512_load_si512(order.from), bytes);
}

HWY_INLINE VF Widened(VU lanes, const ByteOrder& order) {
  constexpr __mmask64 kUpperHalves = 0xccccccccccccccccu;
  return hn::BitCast(F32(), VU{Permuted(lanes.raw, order, kUpperHalves)});
}
HWY_INLINE VF FirstPart(VU lanes) {
  static constexpr ByteOrder kOrder = WideningOrder(0);
  return Widened(lanes, kOrder);
}
HWY_INLINE VF SecondPart(VU lanes) {
  static constexpr ByteOrder kOrder = WideningOrder(16);
  return Widened(lanes, kOrder);
}
HWY_INLINE VF FirstOf(VF lower, VF /*upper*/) {
  return lower;
}
HWY_INLINE VF SecondOf(VF /*lower*/, VF upper) {
  return upper;
}

HWY_INLINE __m512i Rounded(VF lower, VF upper) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(upper.raw, lower.raw));
}
template <bool kStream>
HWY_INLINE void StoreParts(VF first, VF second, uint16_t* to) {
  StoreTo<kStream>(U16(), hn::Vec<U16>{Rounded(first, second)}, to);
}
template <bool kStream>
HWY_INLINE void StoreRounded(VF even, VF odd, uint16_t* to) {
  static constexpr ByteOrder kOrder = InterleavingOrder();
  constexpr __mmask64 kAll = ~__mmask64{0};
  StoreTo<kStream>(U16(), hn::Vec<U16>{Permuted(Rounded(even, odd), kOrder, kAll)}, to);
}
#else
// `high` and `low` hold the upper and lower halves of all floats. The top bit of
// (low + 0x7ffe + odd + 1) / 2 is set exactly if rounding carries, where `odd` is the last bit of
// `high`. A NaN has a lower half of 0 (see PlainNaN), so it never carries.
template <bool kStream>
HWY_INLINE void StoreRounded(VF even, VF odd, uint16_t* to) {
  const U32 du;
  const U16 d16;
  const VU even_bits = hn::BitCast(du, even);
  const VU odd_bits = hn::BitCast(du, odd);
  const auto high = hn::BitCast(
      d16, hn::OrAnd(hn::ShiftRight<16>(even_bits), odd_bits, hn::Set(du, 0xffff0000u)));
  const auto low =
      hn::BitCast(d16, hn::OrAnd(hn::ShiftLeft<16>(odd_bits), even_bits, hn::Set(du, 0x0000ffffu)));
  const auto bias = hn::OrAnd(hn::Set(d16, uint16_t{0x7ffe}), high, hn::Set(d16, uint16_t{1}));
  const auto carry = hn::ShiftRight<15>(hn::AverageRound(low, bias));
  StoreTo<kStream>(d16, hn::Add(high, carry), to);
}

// The parts are the even elements and the odd elements.
HWY_INLINE VF FirstPart(VU lanes) {
  return EvenElements(lanes);
}
HWY_INLINE VF SecondPart(VU lanes) {
  return OddElements(lanes);
}
HWY_INLINE VF FirstOf(VF lower, VF upper) {
  return hn::ConcatEven(F32(), upper, lower);
}
HWY_INLINE VF SecondOf(VF lower, VF upper) {
  return hn::ConcatOdd(F32(), upper, lower);
}
template <bool kStream>
HWY_INLINE void StoreParts(VF first, VF second, uint16_t* to) {
  StoreRounded<kStream>(first, second, to);
}
#endif

// A prepared row has, for each 2N pairs, the cosines of the first part, those of the second part,
// and then the sines in the same order.
struct BFloat16HalfFormat {
  using Element = uint16_t;
  using Row = WideRow;
  static constexpr Pairing kPairing = Pairing::kHalf;
  static constexpr size_t kRowFloatsPerPair = 2;
  static HWY_INLINE size_t PairsPerStep() { return 2 * hn::Lanes(F32()); }
  static HWY_INLINE void PrepareRow(const TableRow& row, float* HWY_RESTRICT to) {
    const F32 d;
    const size_t lanes = hn::Lanes(d);
    const VF sign = hn::Set(d, row.sin_sign);
    for (size_t i = 0; i < row.pairs; i += 2 * lanes, to += 4 * lanes) {
      const VF c0 = PlainNaN(LoadPartial(row.cos, i, row.pairs));
      const VF c1 = PlainNaN(LoadPartial(row.cos, i + lanes, row.pairs));
      const VF s0 = PlainNaN(hn::Mul(LoadPartial(row.sin, i, row.pairs), sign));
      const VF s1 = PlainNaN(hn::Mul(LoadPartial(row.sin, i + lanes, row.pairs), sign));
      hn::Store(FirstOf(c0, c1), d, to);
      hn::Store(SecondOf(c0, c1), d, to + lanes);
      hn::Store(FirstOf(s0, s1), d, to + 2 * lanes);
      hn::Store(SecondOf(s0, s1), d, to + 3 * lanes);
    }
  }

  static HWY_INLINE Row LoadRow(const float* row) { return LoadWideRow(row); }

  template <bool kStream>
  static HWY_INLINE size_t Rotate(const Element* a, const Element* b, const Row& row, Element* to_a,
                                  Element* to_b) {
    const VU a_lanes = LoadLanes(a);
    const VU b_lanes = LoadLanes(b);
    VF first_a;
    VF first_b;
    Turn(FirstPart(a_lanes), FirstPart(b_lanes), row.cos0, row.sin0, first_a, first_b);
    VF second_a;
    VF second_b;
    Turn(SecondPart(a_lanes), SecondPart(b_lanes), row.cos1, row.sin1, second_a, second_b);
    StoreParts<kStream>(first_a, second_a, to_a);
    StoreParts<kStream>(first_b, second_b, to_b);
    return 0;
  }
};

// Each 32-bit lane is a pair. A prepared row has, for each 2N pairs, their cosines and then their
// sines.
struct BFloat16InterleavedFormat {
  using Element = uint16_t;
  using Row = WideRow;
  static constexpr Pairing kPairing = Pairing::kInterleaved;
  static constexpr size_t kRowFloatsPerPair = 2;
  static HWY_INLINE size_t PairsPerStep() { return 2 * hn::Lanes(F32()); }
  static HWY_INLINE void PrepareRow(const TableRow& row, float* HWY_RESTRICT to) {
    const F32 d;
    const size_t lanes = hn::Lanes(d);
    const VF sign = hn::Set(d, row.sin_sign);
    for (size_t i = 0; i < row.pairs; i += 2 * lanes, to += 4 * lanes) {
      for (size_t part = 0; part < 2; ++part) {
        const size_t begin = i + part * lanes;
        const VF s = hn::Mul(LoadPartial(row.sin, begin, row.pairs), sign);
        hn::Store(PlainNaN(LoadPartial(row.cos, begin, row.pairs)), d, to + part * lanes);
        hn::Store(PlainNaN(s), d, to + (2 + part) * lanes);
      }
    }
  }

  static HWY_INLINE Row LoadRow(const float* row) { return LoadWideRow(row); }

  template <bool kStream>
  static HWY_INLINE size_t Rotate(const Element* a, const Element* b, const Row& row, Element* to_a,
                                  Element* to_b) {
    RotateLanes<kStream>(a, row.cos0, row.sin0, to_a);
    RotateLanes<kStream>(b, row.cos1, row.sin1, to_b);
    return 0;
  }

 private:
  template <bool kStream>
  static HWY_INLINE void RotateLanes(const Element* from, VF cos, VF sin, Element* to) {
    const VU lanes = LoadLanes(from);
    VF even;
    VF odd;
    Turn(EvenElements(lanes), OddElements(lanes), cos, sin, even, odd);
    StoreRounded<kStream>(even, odd, to);
  }
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace rope::kernels
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_BFLOAT16_INL_H_
