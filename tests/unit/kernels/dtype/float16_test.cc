#include "kernels/dtype/float16.h"

#include <gtest/gtest.h>

#include <cmath>
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

}  // namespace
}  // namespace rope::kernels
