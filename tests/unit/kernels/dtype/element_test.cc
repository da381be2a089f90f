#include "kernels/dtype/element.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace rope::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Float16Test, EveryNumberSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    if (std::isnan(FromFloat16(half))) {
      EXPECT_TRUE(std::isnan(FromFloat16(ToFloat16(FromFloat16(half))))) << bits;
    } else {
      EXPECT_EQ(ToFloat16(FromFloat16(half)), half);
    }
  }
}

TEST(Float16Test, KnownBitsHaveKnownValues) {
  EXPECT_EQ(FromFloat16(0x3c00), 1.0f);
  EXPECT_EQ(FromFloat16(0xc500), -5.0f);
  EXPECT_EQ(FromFloat16(0x7bff), 65504.0f);
  EXPECT_EQ(FromFloat16(0x0400), std::ldexp(1.0f, -14));
  EXPECT_EQ(FromFloat16(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(FromFloat16(0xfc00), -kInfinity);
  EXPECT_TRUE(std::isnan(FromFloat16(0x7c01)));
  EXPECT_TRUE(std::signbit(FromFloat16(0x8000)));
}

TEST(Float16Test, NarrowingRoundsToNearestEven) {
  EXPECT_EQ(ToFloat16(1 + std::ldexp(1.0, -11)), 0x3c00);                         // tie to even
  EXPECT_EQ(ToFloat16(1 + 3 * std::ldexp(1.0, -11)), 0x3c02);                     // tie to even
  EXPECT_EQ(ToFloat16(1 + std::ldexp(1.0, -11) + std::ldexp(1.0, -45)), 0x3c01);  // just above
  EXPECT_EQ(ToFloat16(1 + 3 * std::ldexp(1.0, -11) - std::ldexp(1.0, -45)), 0x3c01);
  EXPECT_EQ(ToFloat16(-1 - 3 * std::ldexp(1.0, -11)), 0xbc02);
  EXPECT_EQ(ToFloat16(65519.99), 0x7bff);
  EXPECT_EQ(ToFloat16(65520.0), 0x7c00);
  EXPECT_EQ(ToFloat16(1e300), 0x7c00);
  EXPECT_EQ(ToFloat16(-kInfinity), 0xfc00);
}

TEST(Float16Test, DenormalsAreKept) {
  EXPECT_EQ(ToFloat16(std::ldexp(1.0, -24)), 0x0001);
  EXPECT_EQ(ToFloat16(std::ldexp(1.0, -25)), 0x0000);   // tie to even
  EXPECT_EQ(ToFloat16(std::ldexp(1.01, -25)), 0x0001);  // above the tie
  EXPECT_EQ(ToFloat16(std::ldexp(3.0, -25)), 0x0002);   // tie to even
  EXPECT_EQ(ToFloat16(std::ldexp(2047.5, -25)), 0x0400);
  EXPECT_EQ(ToFloat16(-std::ldexp(1.0, -60)), 0x8000);
}

TEST(BFloat16Test, EveryNumberSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    if (std::isnan(FromBFloat16(half))) {
      EXPECT_TRUE(std::isnan(FromBFloat16(ToBFloat16(FromBFloat16(half))))) << bits;
    } else {
      EXPECT_EQ(ToBFloat16(FromBFloat16(half)), half);
    }
  }
}

TEST(BFloat16Test, NarrowingRoundsToNearestEven) {
  EXPECT_EQ(ToBFloat16(1.0), 0x3f80);
  EXPECT_EQ(ToBFloat16(1 + std::ldexp(1.0, -8)), 0x3f80);
  EXPECT_EQ(ToBFloat16(1 + 3 * std::ldexp(1.0, -8)), 0x3f82);
  EXPECT_EQ(ToBFloat16(1 + std::ldexp(1.0, -8) + std::ldexp(1.0, -45)), 0x3f81);
  EXPECT_EQ(ToBFloat16(-1 - 3 * std::ldexp(1.0, -8) + std::ldexp(1.0, -45)), 0xbf81);
  EXPECT_EQ(ToBFloat16(3.4e38), 0x7f80);
  EXPECT_EQ(ToBFloat16(1e300), 0x7f80);
  EXPECT_EQ(ToBFloat16(std::ldexp(1.0, -133)), 0x0001);
  EXPECT_EQ(ToBFloat16(std::ldexp(1.0, -134)), 0x0000);
  EXPECT_EQ(ToBFloat16(std::ldexp(1.01, -134)), 0x0001);
}

TEST(BFloat16Test, NaNStaysNaN) {
  EXPECT_TRUE(std::isnan(FromBFloat16(ToBFloat16(std::nan("")))));
  EXPECT_TRUE(std::isnan(FromFloat16(ToFloat16(-std::nan("0xfffff")))));
}

// A format, and the values of its codes below the special ones: sign, exponent, fraction.
struct Format {
  float (*widen)(uint8_t);
  uint8_t (*narrow)(double);
  int digits;
  int bias;
  uint8_t largest;  // the code of the largest finite number

  double Worth(uint8_t code) const {
    const int fraction = code & ((1 << digits) - 1);
    const int exponent = (code & 0x7f) >> digits;
    const double magnitude = exponent == 0
                                 ? std::ldexp(fraction, 1 - bias - digits)
                                 : std::ldexp((1 << digits) + fraction, exponent - bias - digits);
    return code < 0x80 ? magnitude : -magnitude;
  }
};

constexpr Format kE4M3 = {FromFloat8E4M3, ToFloat8E4M3, 3, 7, 0x7e};
constexpr Format kE5M2 = {FromFloat8E5M2, ToFloat8E5M2, 2, 15, 0x7b};

class Float8Test : public ::testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(All, Float8Test, ::testing::Values(kE4M3, kE5M2),
                         [](const auto& format) { return format.index == 0 ? "E4M3" : "E5M2"; });

TEST_P(Float8Test, EveryCodeHasItsWorthAndSurvivesTheRoundTrip) {
  const Format& format = GetParam();
  for (const int sign : {0x00, 0x80}) {
    for (int code = 0; code <= format.largest; ++code) {
      const auto bits = static_cast<uint8_t>(sign | code);
      EXPECT_EQ(format.widen(bits), format.Worth(bits)) << int{bits};
      EXPECT_EQ(format.narrow(format.Worth(bits)), bits);
    }
  }
}

TEST_P(Float8Test, MidpointsGoToTheEvenCodeAndTheirNeighboursToTheNearest) {
  const Format& format = GetParam();
  for (const int sign : {0x00, 0x80}) {
    for (int code = 0; code < format.largest; ++code) {
      const auto low = static_cast<uint8_t>(sign | code);
      const auto high = static_cast<uint8_t>(low + 1);
      const double middle = (format.Worth(low) + format.Worth(high)) / 2;
      EXPECT_EQ(format.narrow(middle), code % 2 == 0 ? low : high) << middle;
      EXPECT_EQ(format.narrow(middle * (1 - 0x1p-50)), low) << middle;
      EXPECT_EQ(format.narrow(middle * (1 + 0x1p-50)), high) << middle;
    }
  }
}

TEST_P(Float8Test, WhatIsTooLargeSaturates) {
  const Format& format = GetParam();
  const double largest = format.Worth(format.largest);
  EXPECT_EQ(largest, format.digits == 3 ? 448 : 57344);
  for (const double value : {largest * 1.001, largest * 2, 1e300, kInfinity}) {
    EXPECT_EQ(format.narrow(value), format.largest);
    EXPECT_EQ(format.narrow(-value), format.largest | 0x80);
  }
}

TEST_P(Float8Test, NaNStaysNaNAndZeroKeepsItsSign) {
  const Format& format = GetParam();
  EXPECT_TRUE(std::isnan(format.widen(0x7f)));
  EXPECT_TRUE(std::isnan(format.widen(0xff)));
  EXPECT_TRUE(std::isnan(format.widen(format.narrow(std::nan("")))));
  EXPECT_TRUE(std::isnan(format.widen(format.narrow(-std::nan("")))));
  EXPECT_EQ(format.narrow(-0.0), 0x80);
  EXPECT_EQ(format.narrow(-1e-300), 0x80);
}

TEST(Float8E5M2Test, WidensItsOtherSpecialCodes) {
  EXPECT_EQ(FromFloat8E5M2(0x7c), kInfinity);
  EXPECT_EQ(FromFloat8E5M2(0xfc), -kInfinity);
  EXPECT_TRUE(std::isnan(FromFloat8E5M2(0x7d)));
  EXPECT_EQ(FromFloat8E4M3(0x7c), 384.0f);  // a finite number in E4M3
}

TEST(ElementTest, EveryDTypeReadsWhatItWroteAtAnyAddressAndNothingBeside) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3,
                            DType::kFloat8E5M2}) {
    uint8_t bytes[8] = {7, 7, 7, 7, 7, 7, 7, 7};
    WriteElement(-1.75, dtype, bytes + 1);
    EXPECT_EQ(ReadElement(bytes + 1, dtype), -1.75) << Name(dtype);
    EXPECT_EQ(bytes[0], 7) << Name(dtype);
    EXPECT_EQ(bytes[1 + ElementBytes(dtype)], 7) << Name(dtype);
    EXPECT_NE(bytes[ElementBytes(dtype)], 7) << Name(dtype);
  }
}

TEST(ElementTest, OnlyEightBitTypesSaturateAndNotByNaN) {
  EXPECT_TRUE(Saturates(448.0001, DType::kFloat8E4M3));
  EXPECT_FALSE(Saturates(-448, DType::kFloat8E4M3));
  EXPECT_FALSE(Saturates(449, DType::kFloat8E5M2));
  EXPECT_TRUE(Saturates(-kInfinity, DType::kFloat8E5M2));
  EXPECT_FALSE(Saturates(std::nan(""), DType::kFloat8E5M2));
  EXPECT_FALSE(Saturates(kInfinity, DType::kFloat16));
}

TEST(ElementTest, WritingRoundsOnce) {
  uint8_t bytes[2] = {};
  // Just above a tie of binary16. Rounding to float first would give the tie, which rounds down.
  WriteElement(1 + 0x1p-11 + 0x1p-45, DType::kFloat16, bytes);
  EXPECT_EQ(ReadElement(bytes, DType::kFloat16), 1 + 0x1p-10);
}

}  // namespace
}  // namespace rope::kernels
