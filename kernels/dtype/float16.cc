#include "kernels/dtype/float16.h"

#include <bit>
#include <cmath>

namespace rope::kernels {
namespace {

constexpr uint32_t kFloatInfinity = 0x7f800000;
constexpr uint32_t kFloatSign = 0x80000000;

// Rounds `value` to float by "round to odd": the result is `value` itself if a float can hold it,
// and otherwise the neighbouring float with an odd significand. A second rounding to fewer bits
// then gives the same result as one rounding of `value` (no double rounding).
float RoundToOdd(double value) {
  const float nearest = static_cast<float>(value);
  if (std::isnan(nearest) || static_cast<double>(nearest) == value) return nearest;
  const uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if ((bits & 1) != 0) return nearest;
  const bool rounded_away = std::abs(static_cast<double>(nearest)) > std::abs(value);
  return std::bit_cast<float>(rounded_away ? bits - 1 : bits + 1);
}

}  // namespace

float FromFloat16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1f;
  const uint32_t fraction = bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | kFloatInfinity | (fraction << 13));
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(fraction), -24);
    return sign == 0 ? magnitude : -magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
}

uint16_t ToFloat16(double value) {
  const uint32_t bits = std::bit_cast<uint32_t>(RoundToOdd(value));
  const uint32_t sign = (bits & kFloatSign) >> 16;
  const uint32_t magnitude = bits & ~kFloatSign;
  uint32_t result = 0;
  if (magnitude > kFloatInfinity) {
    result = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  } else if (magnitude >= 0x47800000) {  // 65536 and above
    result = 0x7c00;
  } else if (magnitude < 0x38800000) {  // below the smallest normal, 2^-14: multiples of 2^-24
    result = static_cast<uint32_t>(
        std::nearbyint(std::ldexp(static_cast<double>(std::bit_cast<float>(magnitude)), 24)));
  } else {
    const uint32_t rebiased = magnitude - (112u << 23);
    result = (rebiased + 0xfff + ((rebiased >> 13) & 1)) >> 13;
  }
  return static_cast<uint16_t>(sign | result);
}

float FromBFloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t ToBFloat16(double value) {
  const uint32_t bits = std::bit_cast<uint32_t>(RoundToOdd(value));
  if ((bits & ~kFloatSign) > kFloatInfinity) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace rope::kernels
