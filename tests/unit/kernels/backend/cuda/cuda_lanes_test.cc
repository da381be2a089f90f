#include "kernels/backend/cuda/cuda_lanes.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>

#include "tests/support/fake_cudart_fixture.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

using rope::testing::IsOk;
using rope::testing::StatusIs;
using ::testing::HasSubstr;
namespace fake_cuda = rope::testing::fake_cuda;

class CudaLanesTest : public rope::testing::FakeCudaTest {
 protected:
  static std::unique_ptr<CudaLane> Get(CudaLanes& lanes, int64_t bytes = 1) {
    absl::StatusOr<std::unique_ptr<CudaLane>> lane = lanes.Acquire(bytes);
    EXPECT_THAT(lane, IsOk());
    return *std::move(lane);
  }
};

TEST_F(CudaLanesTest, LanesAreMadeAtFirstNeedAndUsedAgain) {
  CudaLanes lanes(3);
  EXPECT_EQ(fake_cuda::Counts().streams, 0);
  for (int round = 0; round < 5; ++round) lanes.Release(Get(lanes));
  EXPECT_EQ(fake_cuda::Counts().streams, 1);
  EXPECT_EQ(fake_cuda::Counts().pinned_bytes, kCudaLaneBytes);
  EXPECT_EQ(fake_cuda::Counts().device_bytes, kCudaLaneBytes);
}

TEST_F(CudaLanesTest, AllBusyTryAcquireIsNullAndAcquireWaits) {
  CudaLanes lanes(1);
  std::unique_ptr<CudaLane> held = Get(lanes);
  const auto none = lanes.TryAcquire(1);
  ASSERT_THAT(none, IsOk());
  EXPECT_EQ(*none, nullptr);
  std::thread waiter([&lanes] { lanes.Release(Get(lanes)); });
  lanes.Release(std::move(held));
  waiter.join();
  EXPECT_EQ(fake_cuda::Counts().streams, 1);
}

TEST_F(CudaLanesTest, LargerLaneLivesForOneChunk) {
  CudaLanes lanes(1);
  std::unique_ptr<CudaLane> large = Get(lanes, 3 * kCudaLaneBytes);
  EXPECT_EQ(large->device.bytes(), 3 * kCudaLaneBytes);
  lanes.Release(std::move(large));
  EXPECT_EQ(fake_cuda::Counts().device_bytes, 0);
  lanes.Release(Get(lanes));
  EXPECT_EQ(fake_cuda::Counts().device_bytes, kCudaLaneBytes);
}

TEST_F(CudaLanesTest, FailureToMakeOneKeepsItsPlace) {
  CudaLanes lanes(1);
  for (const char* function : {"cudaMalloc", "cudaMallocHost", "cudaStreamCreateWithFlags"}) {
    fake_cuda::Fail(function, 1, cudaErrorMemoryAllocation);
    EXPECT_THAT(lanes.Acquire(1).status(),
                StatusIs(absl::StatusCode::kInternal, HasSubstr(function)));
    lanes.Discard(Get(lanes));
  }
  EXPECT_EQ(fake_cuda::Counts().streams, 0);
}

}  // namespace
}  // namespace rope::kernels
