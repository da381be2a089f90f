#include "proto/wire/float16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace rope::proto {
namespace {

TEST(Float16Test, EveryHalfSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = FloatFromHalf(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(FloatFromHalf(HalfFromDouble(value))));
    } else {
      EXPECT_EQ(HalfFromDouble(value), bits) << value;
    }
  }
}

TEST(Float16Test, EveryBFloat16SurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = FloatFromBFloat16(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(FloatFromBFloat16(BFloat16FromDouble(value))));
    } else {
      EXPECT_EQ(BFloat16FromDouble(value), bits) << value;
    }
  }
}

TEST(Float16Test, TiesGoToEvenAndNeighboursToTheNearest) {
  EXPECT_EQ(HalfFromDouble(1 + 0x1p-11), 0x3c00);            // tie, down to even
  EXPECT_EQ(HalfFromDouble(1 + 3 * 0x1p-11), 0x3c02);        // tie, up to even
  EXPECT_EQ(HalfFromDouble(1 + 0x1p-11 + 0x1p-40), 0x3c01);  // just above the tie
  EXPECT_EQ(BFloat16FromDouble(1 + 0x1p-8), 0x3f80);
  EXPECT_EQ(BFloat16FromDouble(1 + 3 * 0x1p-8), 0x3f82);
}

TEST(Float16Test, OverflowIsInfinityAndUnderflowIsZeroOrDenormal) {
  EXPECT_EQ(HalfFromDouble(65504), 0x7bff);
  EXPECT_EQ(HalfFromDouble(65520), 0x7c00);
  EXPECT_EQ(HalfFromDouble(-1e300), 0xfc00);
  EXPECT_EQ(HalfFromDouble(0x1p-24), 0x0001);
  EXPECT_EQ(HalfFromDouble(0x1p-25), 0x0000);
  EXPECT_EQ(HalfFromDouble(-0.0), 0x8000);
  EXPECT_EQ(BFloat16FromDouble(std::numeric_limits<double>::infinity()), 0x7f80);
  EXPECT_EQ(BFloat16FromDouble(1e39), 0x7f80);
}

}  // namespace
}  // namespace rope::proto
