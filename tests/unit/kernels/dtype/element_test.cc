#include "kernels/dtype/element.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

namespace rope::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A format, and the worth of its codes below the special ones: sign, exponent, fraction.
struct Format {
  const char* name;
  double (*widen)(int code);
  int (*narrow)(double value);
  int digits;
  int bias;
  int sign;      // its bit
  int largest;   // the code of the largest finite number
  int infinity;  // the code after it; 0: the format has none
  bool saturates;

  double Worth(int code) const {
    const int fraction = code & ((1 << digits) - 1);
    const int exponent = (code & (sign - 1)) >> digits;
    const double magnitude = exponent == 0
                                 ? std::ldexp(fraction, 1 - bias - digits)
                                 : std::ldexp((1 << digits) + fraction, exponent - bias - digits);
    return code < sign ? magnitude : -magnitude;
  }
};

template <typename Bits, float (*kWiden)(Bits)>
double Widened(int code) {
  return kWiden(static_cast<Bits>(code));
}
template <typename Bits, Bits (*kNarrow)(double)>
int Narrowed(double value) {
  return kNarrow(value);
}

constexpr Format kFormats[] = {
    {"E4M3", Widened<uint8_t, FromFloat8E4M3>, Narrowed<uint8_t, ToFloat8E4M3>, 3, 7, 0x80, 0x7e, 0,
     true},
    {"E5M2", Widened<uint8_t, FromFloat8E5M2>, Narrowed<uint8_t, ToFloat8E5M2>, 2, 15, 0x80, 0x7b,
     0x7c, true},
    {"Float16", Widened<uint16_t, FromFloat16>, Narrowed<uint16_t, ToFloat16>, 10, 15, 0x8000,
     0x7bff, 0x7c00, false},
    {"BFloat16", Widened<uint16_t, FromBFloat16>, Narrowed<uint16_t, ToBFloat16>, 7, 127, 0x8000,
     0x7f7f, 0x7f80, false},
};

class FormatTest : public ::testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(All, FormatTest, ::testing::ValuesIn(kFormats),
                         [](const auto& format) { return std::string(format.param.name); });

TEST_P(FormatTest, EveryCodeHasItsWorthAndSurvivesTheRoundTrip) {
  const Format& format = GetParam();
  for (const int sign : {0, format.sign}) {
    for (int code = sign; code <= sign + format.largest; ++code) {
      EXPECT_EQ(format.widen(code), format.Worth(code)) << code;
      EXPECT_EQ(format.narrow(format.Worth(code)), code);
    }
  }
}

TEST_P(FormatTest, MidpointsGoToTheEvenCodeAndTheirNeighboursToTheNearest) {
  const Format& format = GetParam();
  const int last = format.saturates ? format.largest - 1 : format.largest;  // before infinity
  for (const int sign : {0, format.sign}) {
    for (int low = sign; low <= sign + last; ++low) {
      const double middle = (format.Worth(low) + format.Worth(low + 1)) / 2;
      EXPECT_EQ(format.narrow(middle), low % 2 == 0 ? low : low + 1) << middle;
      EXPECT_EQ(format.narrow(middle * (1 - 0x1p-50)), low) << middle;
      EXPECT_EQ(format.narrow(middle * (1 + 0x1p-50)), low + 1) << middle;
    }
  }
}

TEST_P(FormatTest, WhatIsTooLargeSaturatesOrIsInfinite) {
  const Format& format = GetParam();
  const double largest = format.Worth(format.largest);
  const int want = format.saturates ? format.largest : format.infinity;
  for (const double value : {largest * 1.01, largest * 2, 1e300, kInfinity}) {
    EXPECT_EQ(format.narrow(value), want);
    EXPECT_EQ(format.narrow(-value), want | format.sign);
  }
}

TEST_P(FormatTest, OtherCodesAreInfinityAndNaNAndZeroKeepsItsSign) {
  const Format& format = GetParam();
  for (const int sign : {0, format.sign}) {
    for (int code = sign + format.largest + 1; code < sign + format.sign; ++code) {
      if (code - sign == format.infinity) {
        EXPECT_EQ(format.widen(code), sign == 0 ? kInfinity : -kInfinity);
      } else {
        EXPECT_TRUE(std::isnan(format.widen(code))) << code;
        EXPECT_TRUE(std::isnan(format.widen(format.narrow(format.widen(code))))) << code;
      }
    }
  }
  EXPECT_TRUE(std::isnan(format.widen(format.narrow(-std::nan("0xfffff")))));
  EXPECT_EQ(format.narrow(-0.0), format.sign);
  EXPECT_EQ(format.narrow(-1e-300), format.sign);
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
