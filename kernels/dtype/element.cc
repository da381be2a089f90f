#include "kernels/dtype/element.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

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

namespace {

constexpr int kE4M3ExponentMin = -6;
constexpr int kE5M2ExponentMin = -14;
constexpr double kE4M3Largest = 448;
constexpr double kE5M2Largest = 57344;
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

float FromFloat8E4M3(uint8_t bits) {
  const int exponent = (bits >> 3) & 15;
  const int fraction = bits & 7;
  float magnitude = std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  if (exponent == 0) magnitude = std::ldexp(static_cast<float>(fraction), kE4M3ExponentMin - 3);
  if ((bits & 0x7f) == kNaN) magnitude = std::nanf("");
  return std::copysign(magnitude, (bits & 0x80) == 0 ? 1.0f : -1.0f);
}

template <typename T>
T Read(const uint8_t* element) {
  T value;
  std::memcpy(&value, element, sizeof(value));
  return value;
}

template <typename T>
void Write(T value, uint8_t* element) {
  std::memcpy(element, &value, sizeof(value));
}

}  // namespace

double ReadElement(const uint8_t* element, DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return Read<float>(element);
    case DType::kFloat16:
      return FromFloat16(Read<uint16_t>(element));
    case DType::kBFloat16:
      return FromBFloat16(Read<uint16_t>(element));
    case DType::kFloat8E4M3:
      return FromFloat8E4M3(*element);
    case DType::kFloat8E5M2:
      break;
  }
  return FromFloat16(static_cast<uint16_t>(*element << 8));  // the upper half of a binary16
}

void WriteElement(double value, DType dtype, uint8_t* element) {
  switch (dtype) {
    case DType::kFloat32:
      return Write(static_cast<float>(value), element);
    case DType::kFloat16:
      return Write(ToFloat16(value), element);
    case DType::kBFloat16:
      return Write(ToBFloat16(value), element);
    case DType::kFloat8E4M3:
      return Write(ToFloat8(value, 3, kE4M3ExponentMin, kE4M3Largest), element);
    case DType::kFloat8E5M2:
      return Write(ToFloat8(value, 2, kE5M2ExponentMin, kE5M2Largest), element);
  }
}

double RoundedTo(double value, DType dtype) {
  uint8_t element[sizeof(float)] = {};
  WriteElement(value, dtype, element);
  return ReadElement(element, dtype);
}

bool Saturates(double value, DType dtype) {
  const double largest = dtype == DType::kFloat8E4M3 ? kE4M3Largest : kE5M2Largest;
  return IsFloat8(dtype) && std::abs(value) > largest;
}

}  // namespace rope::kernels
