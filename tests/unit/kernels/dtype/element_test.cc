#include "kernels/dtype/element.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace rope::kernels {
namespace {

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

TEST(ElementTest, WritingRoundsOnce) {
  uint8_t bytes[2] = {};
  // Just above a tie of binary16. Rounding to float first would give the tie, which rounds down.
  WriteElement(1 + 0x1p-11 + 0x1p-45, DType::kFloat16, bytes);
  EXPECT_EQ(ReadElement(bytes, DType::kFloat16), 1 + 0x1p-10);
}

}  // namespace
}  // namespace rope::kernels
