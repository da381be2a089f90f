#include "kernels/backend/cuda/cuda_memory.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "tests/support/fake_cudart_fixture.h"
#include "tests/support/status_matchers.h"

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

namespace fake_cuda = rope::testing::fake_cuda;

class CudaLanesTest : public rope::testing::FakeCudaTest {
 protected:
  std::unique_ptr<CudaLanes> Make(int lanes) {
    return CudaLanes::Create(lanes, pinned_.data(), device_.data()).value();
  }

  std::vector<char> pinned_ = std::vector<char>(3 * kCudaLaneBytes);
  std::vector<char> device_ = std::vector<char>(3 * kCudaLaneBytes);
};

TEST_F(CudaLanesTest, EachLaneHasItsOwnMemoryAndStream) {
  const auto lanes = Make(3);
  EXPECT_EQ(fake_cuda::Counts().streams, 3);
  for (CudaLane* lane : {lanes->Acquire(), lanes->Acquire(), lanes->Acquire()}) {
    ASSERT_NE(lane, nullptr);
    const int64_t offset = lane->pinned - pinned_.data();
    EXPECT_EQ(offset % kCudaLaneBytes, 0);
    EXPECT_EQ(lane->device - device_.data(), offset);
  }
  EXPECT_EQ(lanes->TryAcquire(), nullptr);
}

TEST_F(CudaLanesTest, TheLastLaneIsLeftToAThreadThatHoldsNone) {
  const auto lanes = Make(3);
  lanes->Acquire();
  EXPECT_NE(lanes->TryAcquire(), nullptr);
  EXPECT_EQ(lanes->TryAcquire(), nullptr);
  EXPECT_NE(lanes->Acquire(), nullptr);
}

TEST_F(CudaLanesTest, AcquireWaitsForALane) {
  const auto lanes = Make(1);
  CudaLane* const held = lanes->Acquire();
  std::thread waiter([&lanes] { lanes->Release(lanes->Acquire()); });
  lanes->Release(held);
  waiter.join();
  EXPECT_EQ(lanes->Acquire(), held);
}

TEST_F(CudaLanesTest, StreamThatCannotBeMadeIsAnError) {
  fake_cuda::Fail("cudaStreamCreateWithFlags", 2, cudaErrorMemoryAllocation);
  EXPECT_THAT(CudaLanes::Create(3, pinned_.data(), device_.data()).status(),
              IsExhausted("cudaStreamCreate"));
}

}  // namespace
}  // namespace rope::kernels
