// Quad: binary128 numbers, for formulas that give the same bits on every processor. long double has
// 64 bits on x86-64 and 113 on aarch64; the C library has the functions of Quad on both.
//
// Threading:  Pure functions; any thread.
// Precision:  A function errs by 2^-112 of its result. Another version of the C library may give
//             another last bit, which ToSignificand64 drops but for one result in 2^40.
#ifndef ROPE_KERNELS_DTYPE_QUAD_H_
#define ROPE_KERNELS_DTYPE_QUAD_H_

#include <array>
#include <bit>
#include <cfloat>
#include <cstdint>

namespace rope::kernels {

#if LDBL_MANT_DIG == 113
using Quad = long double;
#else
using Quad = __float128;
#endif

// Headers declare powf128 and its like for some compilers and language modes only.
Quad QuadPow(Quad base, Quad exponent) noexcept __asm__("powf128");
Quad QuadExp(Quad number) noexcept __asm__("expf128");
Quad QuadLog(Quad number) noexcept __asm__("logf128");
Quad QuadSqrt(Quad number) noexcept __asm__("sqrtf128");

// The sum of two doubles, to 107 bits.
inline constexpr Quad kQuadPi =
    static_cast<Quad>(0x1.921fb54442d18p+1) + static_cast<Quad>(0x1.1a62633145c07p-53);

// The nearest number with a significand of 64 bits, ties to even: every long double holds it.
inline long double ToSignificand64(Quad number) {
  static_assert(std::endian::native == std::endian::little);
  constexpr int kDropped = 113 - 64;
  auto [low, high] = std::bit_cast<std::array<uint64_t, 2>>(number);
  const uint64_t half = (uint64_t{1} << (kDropped - 1)) - 1 + ((low >> kDropped) & 1);
  low += half;
  if (low < half) ++high;  // into the exponent, if all bits are 1
  low = low >> kDropped << kDropped;
  return static_cast<long double>(std::bit_cast<Quad>(std::array<uint64_t, 2>{low, high}));
}

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_DTYPE_QUAD_H_
