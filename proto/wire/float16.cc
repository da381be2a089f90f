#include "proto/wire/float16.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace rope::proto {
namespace {

// A binary format of 16 bits: sign, exponent, mantissa.
struct Format {
  int mantissa_bits;
  int exponent_max;  // unbiased, of the largest finite number
  int exponent_min;  // unbiased, of the smallest normal number
};
constexpr Format kHalf{10, 15, -14};
constexpr Format kBFloat16{7, 127, -126};

uint16_t Round(double value, const Format& format) {
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const auto infinity = static_cast<uint16_t>((format.exponent_max - format.exponent_min + 2)
                                              << format.mantissa_bits);
  if (std::isnan(value)) {
    return static_cast<uint16_t>(sign | infinity | 1u << (format.mantissa_bits - 1));
  }
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  if (std::isinf(magnitude)) return static_cast<uint16_t>(sign | infinity);
  // The unit in the last place at this magnitude. Subnormals use that of the smallest normal.
  const int exponent = std::max(std::ilogb(magnitude), format.exponent_min);
  const double unit = std::ldexp(1.0, exponent - format.mantissa_bits);
  // Dividing by a power of two is exact; nearbyint rounds ties to even.
  const auto units = static_cast<uint32_t>(std::nearbyint(magnitude / unit));
  // A carry out of the mantissa increments the exponent, up to infinity.
  const uint32_t biased = static_cast<uint32_t>(exponent - format.exponent_min)
                          << format.mantissa_bits;
  const uint32_t bits = biased + units;
  return static_cast<uint16_t>(sign | (bits >= infinity ? infinity : bits));
}

}  // namespace

float FloatFromHalf(uint16_t bits) {
  const float sign = bits & 0x8000 ? -1.0f : 1.0f;
  const int exponent = bits >> kHalf.mantissa_bits & 0x1f;
  const int mantissa = bits & 0x3ff;
  if (exponent == 0x1f) {
    return mantissa != 0 ? std::numeric_limits<float>::quiet_NaN()
                         : sign * std::numeric_limits<float>::infinity();
  }
  const int significand = exponent == 0 ? mantissa : mantissa | 0x400;
  const int power = (exponent == 0 ? 1 : exponent) - 15 - kHalf.mantissa_bits;
  return sign * std::ldexp(static_cast<float>(significand), power);
}

float FloatFromBFloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t HalfFromDouble(double value) {
  return Round(value, kHalf);
}

uint16_t BFloat16FromDouble(double value) {
  return Round(value, kBFloat16);
}

}  // namespace rope::proto
