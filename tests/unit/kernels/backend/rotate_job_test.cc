#include "kernels/backend/rotate_job.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace rope::kernels {
namespace {

// Two tokens of one head with 8 channels, a window of 6 from channel 1, at a stride of 10.
class ReorderPairsTest : public ::testing::Test {
 protected:
  ReorderPairsTest() {
    for (size_t i = 0; i < 20; ++i) numbers_.push_back(static_cast<uint16_t>(i));
    job_.output = numbers_.data();
    job_.output_strides = {.token = 10, .head = 0};
    job_.tokens = 2;
    job_.heads = 1;
    job_.head_dim = 8;
    job_.dtype = DType::kFloat16;
    job_.geometry = {.pairing = Pairing::kInterleaved, .pairs = 2, .offset = 1, .partner = 3};
  }

  std::vector<uint16_t> numbers_;
  RotateJob job_;
};

TEST_F(ReorderPairsTest, InterleavedPairsBecomeHalvesOfTheWholeWindow) {
  ReorderPairs(job_, Pairing::kHalf);
  EXPECT_EQ(numbers_, (std::vector<uint16_t>{0,  1,  3,  5,  2,  4,  6,  7,  8,  9,
                                             10, 11, 13, 15, 12, 14, 16, 17, 18, 19}));
}

TEST_F(ReorderPairsTest, HalvesBecomeInterleavedPairs) {
  ReorderPairs(job_, Pairing::kHalf);
  job_.geometry.pairing = Pairing::kHalf;
  ReorderPairs(job_, Pairing::kInterleaved);
  for (size_t i = 0; i < numbers_.size(); ++i) EXPECT_EQ(numbers_[i], i);
}

TEST_F(ReorderPairsTest, SameOrderAndHeadsThatPassThroughStay) {
  ReorderPairs(job_, Pairing::kInterleaved);
  job_.geometry.pairs = 0;
  ReorderPairs(job_, Pairing::kHalf);
  for (size_t i = 0; i < numbers_.size(); ++i) EXPECT_EQ(numbers_[i], i);
}

}  // namespace
}  // namespace rope::kernels
