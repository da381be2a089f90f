#include "kernels/dtype/float8.h"

#include <algorithm>
#include <cmath>

#include "kernels/dtype/float16.h"

namespace rope::kernels {
namespace {

constexpr int kE4M3ExponentMin = -6;
constexpr int kE5M2ExponentMin = -14;
constexpr uint8_t kNaN = 0x7f;  // of both formats

// `digits`: bits of the fraction. `exponent_min`: exponent of the smallest normal number.
uint8_t ToFloat8(double value, int digits, int exponent_min, double largest) {
  const auto sign = static_cast<uint8_t>(std::signbit(value) ? 0x80 : 0);
  if (std::isnan(value)) return static_cast<uint8_t>(sign | kNaN);
  const double magnitude = std::min(std::abs(value), largest);
  const int exponent =
      magnitude == 0 ? exponent_min : std::max(std::ilogb(magnitude), exponent_min);
  // The magnitude in units of its last place, rounded. The sum below is the encoding: the leading 1
  // of a normal number and a carry from rounding both add 1 to the exponent field.
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, digits - exponent)));
  return static_cast<uint8_t>(sign | (((exponent - exponent_min) << digits) + units));
}

}  // namespace

float FromFloat8E4M3(uint8_t bits) {
  const int exponent = (bits >> 3) & 15;
  const int fraction = bits & 7;
  float magnitude = std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  if (exponent == 0) magnitude = std::ldexp(static_cast<float>(fraction), kE4M3ExponentMin - 3);
  if ((bits & 0x7f) == kNaN) magnitude = std::nanf("");
  return std::copysign(magnitude, (bits & 0x80) == 0 ? 1.0f : -1.0f);
}

uint8_t ToFloat8E4M3(double value) {
  return ToFloat8(value, 3, kE4M3ExponentMin, 448);
}

float FromFloat8E5M2(uint8_t bits) {
  return FromFloat16(static_cast<uint16_t>(bits << 8));
}

uint8_t ToFloat8E5M2(double value) {
  return ToFloat8(value, 2, kE5M2ExponentMin, 57344);
}

}  // namespace rope::kernels
