#include "kernels/backend/cuda/cuda_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

namespace rope::kernels {
namespace {

constexpr CudaRectangle kRectangle = {.tokens = 5, .heads = 3, .head_dim = 4, .element_bytes = 2};
constexpr size_t kBytes = 512;

// Dense, with gaps between tokens and between heads, in another order, and overlapping vectors.
TEST(CudaCopyTest, EveryVectorArrivesAndNothingElseChanges) {
  constexpr Strides kStrides[] = {{12, 4}, {4, 20}, {17, 4}, {30, 7}};
  for (const Strides& from : {Strides{12, 4}, Strides{4, 20}, Strides{17, 4}, Strides{30, 7},
                              Strides{12, 0}, Strides{12, 2}}) {
    for (const Strides& to : kStrides) {
      std::vector<char> source(kBytes);
      std::iota(source.begin(), source.end(), 0);
      std::vector<char> want(kBytes, 'x');
      for (int64_t token = 0; token < 5; ++token) {
        for (int64_t head = 0; head < 3; ++head) {
          std::memcpy(want.data() + 2 * (token * to.token + head * to.head),
                      source.data() + 2 * (token * from.token + head * from.head), 8);
        }
      }
      std::vector<char> target(kBytes, 'x');
      CopyRectangle(kRectangle, source.data(), from, target.data(), to);
      EXPECT_EQ(target, want) << from.token << " " << from.head << " to " << to.token << " "
                              << to.head;
    }
  }
}

}  // namespace
}  // namespace rope::kernels
