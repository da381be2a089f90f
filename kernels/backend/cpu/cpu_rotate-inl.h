// The kernels of cpu_rotate.cc, compiled once per instruction set.
//
// A Format describes how the elements of pairs lie in memory. Its members are
//   Element            the type of one element
//   kPairing           the pairing of channels
//   PairsPerStep()     the number of pairs that one Rotate turns
//   kRowFloatsPerPair  the size of a prepared row, in floats per pair
//   PrepareRow()       stores a token's cosines and sines in the order of Rotate, for all its heads
//   LoadRow()          loads one step's part of a prepared row
//   Rotate()           turns one step: PairsPerStep() elements at `a` and as many at `b` (half
//                      pairing: first and second channels; interleaved: two halves of one run). It
//                      loads everything before it stores, so input and output may be equal.
//                      Returns the number of elements that saturate
#if defined(ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_INL_H_
#undef ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_INL_H_
#else
#define ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/dtype/dtype.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace rope::kernels {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using VF = hn::Vec<F32>;
using U32 = hn::ScalableTag<uint32_t>;
using U16 = hn::ScalableTag<uint16_t>;
using VU = hn::Vec<U32>;

// The largest PairsPerStep() of any format.
constexpr size_t kStepMax = 2 * HWY_MAX_BYTES / sizeof(float);

// The cosines and sines of one token, in table order.
struct TableRow {
  const float* cos;
  const float* sin;
  size_t pairs;
  float sin_sign;  // 1, or -1 for the conjugate
};

template <bool kStream, class D, class V>
HWY_INLINE void StoreTo(D d, V v, hn::TFromD<D>* to) {
  // A streaming store of less than 16 bytes would write 16 bytes.
  if constexpr (kStream && hn::MaxLanes(D()) * sizeof(*to) >= 16) {
    hn::Stream(v, d, to);
  } else {
    hn::StoreU(v, d, to);
  }
}

// Loads values[begin] to values[begin + lanes - 1]; lanes from `end` on are 0.
HWY_INLINE VF LoadPartial(const float* values, size_t begin, size_t end) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  if (begin + lanes <= end) return hn::LoadU(d, values + begin);
  HWY_ALIGN float part[HWY_MAX_BYTES / sizeof(float)] = {};
  if (begin < end) std::memcpy(part, values + begin, (end - begin) * sizeof(float));
  return hn::Load(d, part);
}

// One step's part of a prepared row, for formats that need four vectors.
struct WideRow {
  VF cos0;
  VF cos1;
  VF sin0;
  VF sin1;
};

HWY_INLINE WideRow LoadWideRow(const float* row) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  return {hn::Load(d, row), hn::Load(d, row + lanes), hn::Load(d, row + 2 * lanes),
          hn::Load(d, row + 3 * lanes)};
}

// ---- fp32, fp16 and fp8 elements: a vector of floats in memory order. Store returns the number
// of elements that saturate ----

struct Float32Elements {
  using Element = float;
  static HWY_INLINE VF Load(const float* from) { return hn::LoadU(F32(), from); }
  static HWY_INLINE VF Rounded(VF v) { return v; }
  template <bool kStream>
  static HWY_INLINE size_t Store(VF v, float* to) {
    StoreTo<kStream>(F32(), v, to);
    return 0;
  }
};

#if HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_EMU128
// These targets have no conversion instructions, and Highway's emulation truncates. So conversions
// use integer arithmetic.
HWY_INLINE VF FloatFromHalf(VU half) {
  const F32 df;
  const U32 du;
  const VU magnitude = hn::And(half, hn::Set(du, 0x7fffu));
  const VU sign = hn::ShiftLeft<16>(hn::Xor(half, magnitude));
  const VF rebias = hn::BitCast(df, hn::Set(du, (127u + 112u) << 23));  // 2^112
  const VU finite = hn::BitCast(du, hn::Mul(hn::BitCast(df, hn::ShiftLeft<13>(magnitude)), rebias));
  const VU special = hn::Or(finite, hn::Set(du, 0x7f800000u));
  const auto is_special = hn::Gt(magnitude, hn::Set(du, 0x7bffu));
  return hn::BitCast(df, hn::Or(sign, hn::IfThenElse(is_special, special, finite)));
}

HWY_INLINE VU HalfFromFloat(VF v) {
  const F32 df;
  const U32 du;
  const VU bits = hn::BitCast(du, v);
  const VU magnitude = hn::And(bits, hn::Set(du, 0x7fffffffu));
  const VU sign = hn::ShiftRight<16>(hn::Xor(bits, magnitude));
  // Normal results: rebias, round to nearest even.
  const VU odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
  const VU biased = hn::Add(magnitude, hn::Set(du, 0xc8000fffu));  // -112 << 23, + 0xfff
  const VU normal = hn::ShiftRight<13>(hn::Add(biased, odd));
  // Denormal results: adding 0.5 rounds them to multiples of 2^-24, which are then in the low bits.
  const VF half = hn::Set(df, 0.5f);
  const VU denormal =
      hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(df, magnitude), half)), hn::BitCast(du, half));
  const VU infinity = hn::Set(du, 0x7c00u);
  VU result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 0x38800000u)), denormal, normal);
  result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x477fffffu)), infinity, result);
  result =
      hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x7f800000u)), hn::Set(du, 0x7e00u), result);
  return hn::Or(sign, result);
}

struct Float16Elements {
  using Element = uint16_t;
  using Narrow = hn::Rebind<uint16_t, F32>;
  static HWY_INLINE VF Widened(hn::Vec<Narrow> half) {
    return FloatFromHalf(hn::PromoteTo(U32(), half));
  }
  static HWY_INLINE VF Load(const uint16_t* from) { return Widened(hn::LoadU(Narrow(), from)); }
  static HWY_INLINE VF Rounded(VF v) { return FloatFromHalf(HalfFromFloat(v)); }
  template <bool kStream>
  static HWY_INLINE size_t Store(VF v, uint16_t* to) {
    // The narrowing instruction is signed and saturates. Sign extension of the 16 bits makes every
    // value fit.
    const hn::Rebind<int16_t, F32> d16;
    const hn::Rebind<int32_t, F32> d32;
    const auto lanes = hn::BitCast(d32, HalfFromFloat(v));
    const auto extended = hn::ShiftRight<16>(hn::ShiftLeft<16>(lanes));
    const auto narrow = hn::BitCast(Narrow(), hn::DemoteTo(d16, extended));
    StoreTo<kStream>(Narrow(), narrow, to);
    return 0;
  }
};
#else
struct Float16Elements {
  using Element = uint16_t;
  using Half = hn::Rebind<hwy::float16_t, F32>;
  using Narrow = hn::Rebind<uint16_t, F32>;
  static HWY_INLINE VF Widened(hn::Vec<Narrow> half) {
    return hn::PromoteTo(F32(), hn::BitCast(Half(), half));
  }
  static HWY_INLINE VF Load(const uint16_t* from) { return Widened(hn::LoadU(Narrow(), from)); }
  static HWY_INLINE VF Rounded(VF v) { return hn::PromoteTo(F32(), hn::DemoteTo(Half(), v)); }
  template <bool kStream>
  static HWY_INLINE size_t Store(VF v, uint16_t* to) {
    StoreTo<kStream>(Narrow(), hn::BitCast(Narrow(), hn::DemoteTo(Half(), v)), to);
    return 0;
  }
};
#endif

// kDigits: bits of the fraction. kExponentMin: exponent of the smallest normal number. kNaN: the
// number that the code of a NaN would be if it were one.
template <int kDigits, int kExponentMin, int kLargest, int kNaN>
struct Float8Elements {
  using Element = uint8_t;

  // A code is the start of a binary16: the upper half for e5m2. Exponents of e4m3 have a bit less,
  // so the binary16 is 2^8 times smaller.
  static HWY_INLINE VF Load(const uint8_t* from) {
    const Float16Elements::Narrow d16;
    const hn::Rebind<uint8_t, F32> d8;
    const auto codes = hn::LoadU(d8, from);
    if constexpr (kDigits == 2) {
      return Float16Elements::Widened(hn::ShiftLeft<8>(hn::PromoteTo(d16, codes)));
    } else {
      const auto extended = hn::BitCast(
          d16,
          hn::PromoteTo(hn::Rebind<int16_t, F32>(), hn::BitCast(hn::Rebind<int8_t, F32>(), codes)));
      const auto number = hn::And(hn::ShiftLeft<7>(extended), hn::Set(d16, uint16_t{0xbf80}));
      // The carry from a NaN, whose bits are all set, makes a NaN of the binary16.
      const auto carry = hn::Add(number, hn::Set(d16, uint16_t{0x0080}));
      const auto half = hn::OrAnd(number, carry, hn::Set(d16, uint16_t{0x4000}));
      return hn::Mul(Float16Elements::Widened(half), hn::Set(F32(), 256.0f));
    }
  }

  template <bool kStream>
  static HWY_INLINE size_t Store(VF v, uint8_t* to) {
    const F32 df;
    const U32 du;
    const hn::Rebind<int32_t, F32> di;
    const VF largest = hn::Set(df, static_cast<float>(kLargest));
    VF magnitude = hn::Abs(v);
    size_t saturated = 0;
    // As integers, infinities and NaN are above all numbers.
    const auto special = hn::Gt(hn::BitCast(di, magnitude), hn::BitCast(di, largest));
    if (HWY_UNLIKELY(!hn::AllFalse(di, special))) {
      saturated = hn::CountTrue(df, hn::Gt(magnitude, largest));
      magnitude = hn::IfThenElse(hn::IsNaN(magnitude), hn::Set(df, static_cast<float>(kNaN)),
                                 hn::Min(magnitude, largest));
    }
    // The last place of `ruler` is that of the result, so that the sum rounds to nearest even. Its
    // last bits are the exponent of the code, so that those of the sum are the code.
    constexpr int32_t kSmallest = (127 + kExponentMin) << 23;
    const auto exponent = hn::And(hn::BitCast(di, magnitude), hn::Set(di, 0x7f800000));
    const auto power = hn::Max(exponent, hn::Set(di, kSmallest));
    const auto offset = hn::Set(di, ((23 - kDigits) << 23) - (kSmallest >> (23 - kDigits)));
    const auto ruler = hn::Add(hn::Add(power, hn::ShiftRight<23 - kDigits>(power)), offset);
    const VU sum = hn::BitCast(du, hn::Add(magnitude, hn::BitCast(df, ruler)));
    const VU code = hn::OrAnd(hn::And(sum, hn::Set(du, 0x7fu)),
                              hn::ShiftRight<24>(hn::BitCast(du, v)), hn::Set(du, 0x80u));
    hn::StoreU(hn::U8FromU32(code), hn::Rebind<uint8_t, F32>(), to);
    return saturated;
  }
};
using Float8E4M3Elements = Float8Elements<3, -6, 448, 480>;
using Float8E5M2Elements = Float8Elements<2, -14, 57344, 114688>;

// ---- the arithmetics on pairs of floats (PairArithmetic). Each has two forms. Split takes a
// vector of first channels and a vector of second channels. Neighbours takes whole pairs in one
// vector; `signed_sin` is -s in the lanes of first channels and s in the others ----

// a * c - b * s and b * c + a * s.
HWY_INLINE void Turn(VF a, VF b, VF c, VF s, VF& turned_a, VF& turned_b) {
  turned_a = hn::NegMulAdd(b, s, hn::Mul(a, c));
  turned_b = hn::MulAdd(a, s, hn::Mul(b, c));
}

struct FusedTurn {
  static HWY_INLINE void Split(VF a, VF b, VF c, VF s, VF& to_a, VF& to_b) {
    Turn(a, b, c, s, to_a, to_b);
  }
  static HWY_INLINE VF Neighbours(VF x, VF c, VF signed_sin) {
    return hn::MulAdd(hn::Reverse2(F32(), x), signed_sin, hn::Mul(x, c));
  }
};

// Elements::Rounded returns the nearest value of the element type, as a float. For fp32 it does
// nothing, so only -ffp-contract=off keeps the compiler from fusing the products.
template <class Elements>
struct StepwiseTurn {
  static HWY_INLINE void Split(VF a, VF b, VF c, VF s, VF& to_a, VF& to_b) {
    to_a = Elements::Rounded(hn::Sub(Product(a, c), Product(b, s)));
    to_b = Elements::Rounded(hn::Add(Product(b, c), Product(a, s)));
  }
  static HWY_INLINE VF Neighbours(VF x, VF c, VF signed_sin) {
    const VF swapped = hn::Reverse2(F32(), x);
    return Elements::Rounded(hn::Add(Product(x, c), Product(swapped, signed_sin)));
  }

 private:
  static HWY_INLINE VF Product(VF x, VF y) { return Elements::Rounded(hn::Mul(x, y)); }
};

struct Addition {
  static HWY_INLINE void Split(VF a, VF b, VF c, VF s, VF& to_a, VF& to_b) {
    to_a = hn::Add(a, s);
    to_b = hn::Add(b, c);
  }
  static HWY_INLINE VF Neighbours(VF x, VF c, VF signed_sin) {
    return hn::Add(x, hn::OddEven(c, hn::Neg(signed_sin)));
  }
};

// A prepared row has N cosines and then N sines for each N pairs.
template <class Elements, class Arithmetic = FusedTurn>
struct HalfFormat {
  using Element = typename Elements::Element;
  struct Row {
    VF cos;
    VF sin;
  };
  static constexpr Pairing kPairing = Pairing::kHalf;
  static constexpr size_t kRowFloatsPerPair = 2;
  static HWY_INLINE size_t PairsPerStep() { return hn::Lanes(F32()); }

  static HWY_INLINE void PrepareRow(const TableRow& row, float* HWY_RESTRICT to) {
    const F32 d;
    const size_t lanes = hn::Lanes(d);
    const VF sign = hn::Set(d, row.sin_sign);
    for (size_t i = 0; i < row.pairs; i += lanes, to += 2 * lanes) {
      hn::Store(LoadPartial(row.cos, i, row.pairs), d, to);
      hn::Store(hn::Mul(LoadPartial(row.sin, i, row.pairs), sign), d, to + lanes);
    }
  }

  static HWY_INLINE Row LoadRow(const float* row) {
    const F32 d;
    return {hn::Load(d, row), hn::Load(d, row + hn::Lanes(d))};
  }

  template <bool kStream>
  static HWY_INLINE size_t Rotate(const Element* a, const Element* b, const Row& row, Element* to_a,
                                  Element* to_b) {
    VF turned_a;
    VF turned_b;
    Arithmetic::Split(Elements::Load(a), Elements::Load(b), row.cos, row.sin, turned_a, turned_b);
    return Elements::template Store<kStream>(turned_a, to_a) +
           Elements::template Store<kStream>(turned_b, to_b);
  }
};

// A vector holds N/2 whole pairs: out = x * (c, c) + swapped x * (-s, s). A prepared row has, for
// each N pairs, two vectors of cosines and then two vectors of sines with alternating signs, every
// value twice.
template <class Elements, class Arithmetic = FusedTurn>
struct InterleavedFormat {
  using Element = typename Elements::Element;
  using Row = WideRow;
  static constexpr Pairing kPairing = Pairing::kInterleaved;
  static constexpr size_t kRowFloatsPerPair = 4;
  static HWY_INLINE size_t PairsPerStep() { return hn::Lanes(F32()); }

  static HWY_INLINE void PrepareRow(const TableRow& row, float* HWY_RESTRICT to) {
    const F32 d;
    const size_t lanes = hn::Lanes(d);
    HWY_ALIGN int32_t pair_of_lane[HWY_MAX_BYTES / sizeof(int32_t)];
    HWY_ALIGN float lane_sign[HWY_MAX_BYTES / sizeof(float)];
    for (size_t i = 0; i < lanes; ++i) {
      pair_of_lane[i] = static_cast<int32_t>(i / 2);
      lane_sign[i] = i % 2 == 0 ? -row.sin_sign : row.sin_sign;
    }
    const auto doubled = hn::SetTableIndices(d, pair_of_lane);
    const VF sign = hn::Load(d, lane_sign);
    for (size_t i = 0; i < row.pairs; i += lanes, to += 4 * lanes) {
      for (size_t part = 0; part < 2; ++part) {
        const size_t begin = i + part * (lanes / 2);
        const VF c = hn::TableLookupLanes(LoadPartial(row.cos, begin, row.pairs), doubled);
        const VF s = hn::TableLookupLanes(LoadPartial(row.sin, begin, row.pairs), doubled);
        hn::Store(c, d, to + part * lanes);
        hn::Store(hn::Mul(s, sign), d, to + (2 + part) * lanes);
      }
    }
  }

  static HWY_INLINE Row LoadRow(const float* row) { return LoadWideRow(row); }

  template <bool kStream>
  static HWY_INLINE size_t Rotate(const Element* a, const Element* b, const Row& row, Element* to_a,
                                  Element* to_b) {
    const VF turned_x = Arithmetic::Neighbours(Elements::Load(a), row.cos0, row.sin0);
    const VF turned_y = Arithmetic::Neighbours(Elements::Load(b), row.cos1, row.sin1);
    return Elements::template Store<kStream>(turned_x, to_a) +
           Elements::template Store<kStream>(turned_y, to_b);
  }
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace rope::kernels
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_INL_H_
