// The kernels of cpu_rotate.cc, compiled once for each instruction set.
//
// A Format is how the elements of pairs lie in memory. Each one gives
//   Element            the type that holds one element
//   kPairing           which channels make a pair
//   PairsPerStep()     how many pairs one Rotate turns
//   kRowFloatsPerPair  what a prepared row takes
//   PrepareRow()       a token's cosines and sines in the order Rotate wants, for all its heads
//   LoadRow()          a step's part of that
//   Rotate()           one step: PairsPerStep() elements at `a` and as many at `b` (half pairing:
//                      first and second channels; interleaved: two halves of one run), all loaded
//                      before anything is stored, so that input and output may be the same
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
#include "kernels/backend/cpu/cpu_rotate_arithmetic-inl.h"
#include "kernels/dtype/pairing.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace rope::kernels {
namespace HWY_NAMESPACE {
namespace {
using U32 = hn::ScalableTag<uint32_t>;
using U16 = hn::ScalableTag<uint16_t>;
using VU = hn::Vec<U32>;

// Most pairs that one step of any format turns.
constexpr size_t kStepMax = 2 * HWY_MAX_BYTES / sizeof(float);

// Cosines and sines of one token as the table has them.
struct TableRow {
  const float* cos;
  const float* sin;
  size_t pairs;
  float sin_sign;  // 1, or -1 for the conjugate
};

template <bool kStream, class D, class V>
HWY_INLINE void StoreTo(D d, V v, hn::TFromD<D>* to) {
  // Streaming a part of a 16-byte register would write all of it.
  if constexpr (kStream && hn::MaxLanes(D()) * sizeof(*to) >= 16) {
    hn::Stream(v, d, to);
  } else {
    hn::StoreU(v, d, to);
  }
}

// Lanes [begin, begin + N) of `values`, zero from `end` on.
HWY_INLINE VF LoadPartial(const float* values, size_t begin, size_t end) {
  const F32 d;
  const size_t lanes = hn::Lanes(d);
  if (begin + lanes <= end) return hn::LoadU(d, values + begin);
  HWY_ALIGN float part[HWY_MAX_BYTES / sizeof(float)] = {};
  if (begin < end) std::memcpy(part, values + begin, (end - begin) * sizeof(float));
  return hn::Load(d, part);
}

// A step's part of a prepared row where that is four vectors.
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

// ---- fp32 and fp16 elements: a vector of floats in memory order. ----

struct Float32Elements {
  using Element = float;
  static HWY_INLINE VF Load(const float* from) { return hn::LoadU(F32(), from); }
  static HWY_INLINE VF Rounded(VF v) { return v; }
  template <bool kStream>
  static HWY_INLINE void Store(VF v, float* to) {
    StoreTo<kStream>(F32(), v, to);
  }
};

#if HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_EMU128
// No conversion instructions, and Highway's emulation truncates: integer arithmetic.
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
  // Denormal results: adding 0.5 leaves multiples of 2^-24 in the low bits, rounded by the
  // addition.
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
  static HWY_INLINE VF Load(const uint16_t* from) {
    return FloatFromHalf(hn::PromoteTo(U32(), hn::LoadU(Narrow(), from)));
  }
  static HWY_INLINE VF Rounded(VF v) { return FloatFromHalf(HalfFromFloat(v)); }
  template <bool kStream>
  static HWY_INLINE void Store(VF v, uint16_t* to) {
    // Signed, because that is the narrowing that saturates; flipping the top bit keeps it out of
    // the way.
    const hn::Rebind<int16_t, F32> d16;
    const hn::Rebind<int32_t, F32> d32;
    const auto lanes = hn::BitCast(d32, HalfFromFloat(v));
    const auto extended = hn::ShiftRight<16>(hn::ShiftLeft<16>(lanes));
    const auto narrow = hn::BitCast(Narrow(), hn::DemoteTo(d16, extended));
    StoreTo<kStream>(Narrow(), narrow, to);
  }
};
#else
struct Float16Elements {
  using Element = uint16_t;
  using Half = hn::Rebind<hwy::float16_t, F32>;
  using Narrow = hn::Rebind<uint16_t, F32>;
  static HWY_INLINE VF Load(const uint16_t* from) {
    return hn::PromoteTo(F32(), hn::BitCast(Half(), hn::LoadU(Narrow(), from)));
  }
  static HWY_INLINE VF Rounded(VF v) { return hn::PromoteTo(F32(), hn::DemoteTo(Half(), v)); }
  template <bool kStream>
  static HWY_INLINE void Store(VF v, uint16_t* to) {
    StoreTo<kStream>(Narrow(), hn::BitCast(Narrow(), hn::DemoteTo(Half(), v)), to);
  }
};
#endif

// Rows: N cosines, N sines for N pairs.
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
  static HWY_INLINE void Rotate(const Element* a, const Element* b, const Row& row, Element* to_a,
                                Element* to_b) {
    VF turned_a;
    VF turned_b;
    Arithmetic::Split(Elements::Load(a), Elements::Load(b), row.cos, row.sin, turned_a, turned_b);
    Elements::template Store<kStream>(turned_a, to_a);
    Elements::template Store<kStream>(turned_b, to_b);
  }
};

// A vector holds N/2 whole pairs: out = x * (c, c) + swapped x * (-s, s).
// Rows: for N pairs two vectors of doubled cosines, then two of doubled sines with alternating
// signs.
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
  static HWY_INLINE void Rotate(const Element* a, const Element* b, const Row& row, Element* to_a,
                                Element* to_b) {
    const VF turned_x = Arithmetic::Neighbours(Elements::Load(a), row.cos0, row.sin0);
    const VF turned_y = Arithmetic::Neighbours(Elements::Load(b), row.cos1, row.sin1);
    Elements::template Store<kStream>(turned_x, to_a);
    Elements::template Store<kStream>(turned_y, to_b);
  }
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace rope::kernels
HWY_AFTER_NAMESPACE();
#endif  // HWY_TARGET != HWY_SCALAR

#endif  // ROPE_KERNELS_BACKEND_CPU_CPU_ROTATE_INL_H_
