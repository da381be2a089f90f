#include "kernels/float16.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace rope::kernels {
namespace {

TEST(KernelFloat16Test, EveryPatternSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto pattern = static_cast<uint16_t>(bits);
    const float half = FromFloat16(pattern);
    if (std::isnan(half)) {
      EXPECT_TRUE(std::isnan(FromFloat16(ToFloat16(half)))) << bits;
    } else {
      EXPECT_EQ(ToFloat16(half), pattern) << bits;
    }
    const float brain = FromBFloat16(pattern);
    if (std::isnan(brain)) {
      EXPECT_TRUE(std::isnan(FromBFloat16(ToBFloat16(brain)))) << bits;
    } else {
      EXPECT_EQ(ToBFloat16(brain), pattern) << bits;
    }
  }
}

TEST(KernelFloat16Test, BFloat16IsTheUpperHalfOfAFloat) {
  EXPECT_EQ(std::bit_cast<uint32_t>(FromBFloat16(0x1234)), 0x12340000u);
}

TEST(KernelFloat16Test, NarrowingRoundsOnceToNearestEven) {
  EXPECT_EQ(ToFloat16(1 + 0x1p-11), 0x3c00);
  EXPECT_EQ(ToFloat16(1 + 3 * 0x1p-11), 0x3c02);
  EXPECT_EQ(ToFloat16(1 + 0x1p-11 + 0x1p-40), 0x3c01);
  EXPECT_EQ(ToFloat16(-65520.0), 0xfc00);
  EXPECT_EQ(ToFloat16(0x1p-24), 0x0001);
  EXPECT_EQ(ToFloat16(0x1p-25), 0x0000);
  EXPECT_EQ(ToBFloat16(1 + 0x1p-8), 0x3f80);
  EXPECT_EQ(ToBFloat16(1 + 0x1p-8 + 0x1p-40), 0x3f81);
  EXPECT_EQ(ToBFloat16(1e39), 0x7f80);
  EXPECT_EQ(ToBFloat16(-0.0), 0x8000);
}

}  // namespace
}  // namespace rope::kernels
