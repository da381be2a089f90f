#include "kernels/dtype/float8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace rope::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

}  // namespace
}  // namespace rope::kernels
