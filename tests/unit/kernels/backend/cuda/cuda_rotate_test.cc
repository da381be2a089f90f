// The source of the kernels, run on the CPU: rounding of every 16-bit number. The contract suite
// and the golden files run over the same source (tests/conformance/implementations.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/backend/backend.h"
#include "kernels/dtype/element.h"
#include "tests/support/fake_cuda_backend.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

float FloatOf(uint16_t bits, DType dtype) {
  return dtype == DType::kFloat16 ? FromFloat16(bits) : FromBFloat16(bits);
}

// Multiplies every 16-bit number by `cos`: the head holds the numbers and as many zeros.
std::vector<uint16_t> TimesCos(float cos, DType dtype, const CudaShapes& shapes) {
  constexpr int64_t kPairs = 256;
  constexpr int64_t kTokens = 65536 / kPairs;
  std::vector<uint16_t> tensor(2 * 65536, 0);
  for (size_t i = 0; i < 65536; ++i) {
    tensor[i / kPairs * 2 * kPairs + i % kPairs] = static_cast<uint16_t>(i);
  }
  std::vector<float> row(2 * kPairs, 0.0f);
  std::fill(row.begin(), row.begin() + kPairs, cos);
  const TablePage page(1, kPairs, row);
  const std::vector<RowRef> rows(kTokens, {&page, 0});
  RotateJob job;
  job.input = job.output = tensor.data();
  job.input_strides = job.output_strides = {2 * kPairs, 2 * kPairs};
  job.tokens = kTokens;
  job.heads = 1;
  job.head_dim = 2 * kPairs;
  job.dtype = dtype;
  job.geometry = {.pairing = Pairing::kHalf, .pairs = kPairs, .offset = 0, .partner = kPairs};
  job.rows = rows;
  EXPECT_THAT(rope::testing::MakeCudaSourceBackend(shapes)->Rotate({&job, 1}), IsOk());
  std::vector<uint16_t> result;
  for (size_t i = 0; i < 65536; ++i) {
    result.push_back(tensor[i / kPairs * 2 * kPairs + i % kPairs]);
  }
  return result;
}

TEST(CudaRotateTest, Every16BitNumberIsWidenedAndRoundedToNearestEven) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const float cos : {1.0f, 0.3333333f, 1.0f + 0x1p-10f, 0x1p-12f, 5.7e-6f, 3.5f}) {
      const std::vector<uint16_t> got = TimesCos(cos, dtype, {});
      EXPECT_EQ(got, TimesCos(cos, dtype, rope::testing::AlwaysLists()));
      int wrong = 0;
      for (uint32_t i = 0; i < 65536; ++i) {
        const float x = FloatOf(static_cast<uint16_t>(i), dtype);
        const float product = x * cos;
        const uint16_t want = dtype == DType::kFloat16 ? ToFloat16(product) : ToBFloat16(product);
        const bool same = std::isnan(x) ? std::isnan(FloatOf(got[i], dtype))
                                        : FloatOf(got[i], dtype) == FloatOf(want, dtype);
        wrong += same ? 0 : 1;
      }
      EXPECT_EQ(wrong, 0) << Name(dtype) << " times " << cos;
    }
  }
}

}  // namespace
}  // namespace rope::kernels
