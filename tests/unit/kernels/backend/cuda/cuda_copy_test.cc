#include "kernels/backend/cuda/cuda_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/backend/cuda/cuda_runtime.h"
#include "tests/support/fake_cudart_fixture.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

using rope::testing::IsOk;
namespace fake_cuda = rope::testing::fake_cuda;

constexpr CudaRectangle kRectangle = {.tokens = 5, .heads = 3, .head_dim = 4, .element_bytes = 2};
constexpr size_t kBytes = 512;

class CudaCopyTest : public rope::testing::FakeCudaTest {
 protected:
  // Runs both copies and checks every vector. Returns the number of CUDA calls of the device's
  // copy.
  static int64_t CopyBoth(const Strides& from, const Strides& to) {
    const auto source = CudaBuffer::Create(CudaBuffer::Kind::kPinned, kBytes);
    const auto target = CudaBuffer::Create(CudaBuffer::Kind::kDevice, kBytes);
    const auto stream = CudaStream::Create();
    std::iota(source->data(), source->data() + kBytes, 0);
    std::vector<char> want(kBytes, 'x');
    std::memset(target->data(), 'x', kBytes);
    for (int64_t token = 0; token < 5; ++token) {
      for (int64_t head = 0; head < 3; ++head) {
        std::memcpy(want.data() + 2 * (token * to.token + head * to.head),
                    source->data() + 2 * (token * from.token + head * from.head), 8);
      }
    }
    std::vector<char> by_host(kBytes, 'x');
    CopyRectangle(kRectangle, source->data(), from, by_host.data(), to);
    EXPECT_EQ(by_host, want);
    const int64_t before = Calls();
    EXPECT_THAT(
        CopyRectangleAsync(kRectangle, source->data(), from, target->data(), to, stream->get()),
        IsOk());
    const int64_t calls = Calls() - before;
    EXPECT_THAT(stream->Synchronize(), IsOk());
    EXPECT_EQ(std::memcmp(target->data(), want.data(), kBytes), 0);
    return calls;
  }
  static int64_t Calls() {
    return fake_cuda::Calls("cudaMemcpyAsync") + fake_cuda::Calls("cudaMemcpy2DAsync");
  }
};

TEST_F(CudaCopyTest, DenseRectanglesOfOneOrderAreOneRun) {
  EXPECT_EQ(CopyBoth({12, 4}, {12, 4}), 1);
  EXPECT_EQ(CopyBoth({4, 20}, {4, 20}), 1);
}

TEST_F(CudaCopyTest, GapsBetweenTokensAreOneCopyOfRows) {
  EXPECT_EQ(CopyBoth({17, 4}, {12, 4}), 1);
  EXPECT_EQ(CopyBoth({12, 4}, {17, 4}), 1);
}

TEST_F(CudaCopyTest, GapsBetweenHeadsAreACopyForEachToken) {
  EXPECT_EQ(CopyBoth({30, 7}, {12, 4}), 5);
}

TEST_F(CudaCopyTest, OrderMayChange) {
  EXPECT_EQ(CopyBoth({12, 4}, {4, 20}), 5);
}

// Strides that cudaMemcpy2DAsync cannot express.
TEST_F(CudaCopyTest, VectorsThatOverlapInTheSourceGoOneByOne) {
  EXPECT_EQ(CopyBoth({12, 0}, {12, 4}), 15);
  EXPECT_EQ(CopyBoth({12, 2}, {12, 4}), 15);
}

}  // namespace
}  // namespace rope::kernels
