#include "kernels/backend/cuda/cuda_device.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/backend/cuda/cuda_driver.h"
#include "kernels/backend/cuda/device_executor.h"
#include "kernels/backends.h"
#include "proto/error.h"
#include "tests/support/fake_cuda_fixture.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

using rope::testing::kIllegalAddress;
using rope::testing::kInvalidValue;
using rope::testing::kLaunchFailed;
using rope::testing::kUnknown;
namespace fake_cuda = rope::testing::fake_cuda;

class CudaDeviceTest : public rope::testing::FakeCudaTest {
 protected:
  static absl::Status CreateWith(const char* function, CudaError error, bool stays = false) {
    fake_cuda::Fail(function, 1, error, stays);
    return CreateBackend("cuda", {}).status();
  }
};

TEST(CudaDriverTest, LibraryThatIsNotThereIsNoDriver) {
  EXPECT_THAT(LoadCudaDriver("libabacus.so.1").status(),
              IsUnavailable("no NVIDIA driver is installed (libabacus.so.1: "));
}

TEST(CudaDriverTest, LibraryThatFindsNoFunctionsByVersionIsTooOld) {
  EXPECT_THAT(LoadCudaDriver("libm.so.6").status(),
              IsUnavailable("the NVIDIA driver is older than CUDA 11.3"));
}

TEST_F(CudaDeviceTest, DeviceIsDescribed) {
  ASSERT_OK(device, CudaDevice::Open());
  EXPECT_EQ(device->detail(), "Fake GPU, compute capability 9.0, 132 multiprocessors, 1024 MiB");
}

TEST_F(CudaDeviceTest, StubOfTheToolkitIsNoDriver) {
  fake_cuda::Fail("cuGetProcAddress", 1, CudaError::kStubLibrary);
  EXPECT_THAT(LoadCudaDriver().status(),
              IsUnavailable("no NVIDIA driver is installed, but a stub"));
}

TEST_F(CudaDeviceTest, DriverWithoutADeviceIsUnavailable) {
  EXPECT_THAT(CreateWith("cuInit", CudaError::kNoDevice),
              IsUnavailable("the NVIDIA driver sees no GPU (cuInit: no CUDA-capable device is"));
  EXPECT_THAT(CreateWith("cuDeviceGet", CudaError::kInvalidDevice),
              IsUnavailable("the NVIDIA driver sees no GPU (cuDeviceGet: "));
}

TEST_F(CudaDeviceTest, DeviceThatTheKernelsWereNotBuiltForIsUnavailable) {
  for (const CudaError error :
       {CudaError::kNoBinaryForGpu, CudaError::kInvalidPtx, CudaError::kUnsupportedPtxVersion}) {
    EXPECT_THAT(CreateWith("cuModuleLoadData", error),
                IsUnavailable("this build has no kernels for Fake GPU"));
  }
}

TEST_F(CudaDeviceTest, DeviceWithoutRoomForAContextIsUnavailable) {
  EXPECT_THAT(CreateWith("cuDevicePrimaryCtxRetain", CudaError::kOutOfMemory),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("GPU 0 gives this process no context: Fake GPU"),
                             HasSubstr("cuDevicePrimaryCtxRetain: out of memory"))));
}

TEST_F(CudaDeviceTest, DeviceThatFailsAtTheStartIsUnavailable) {
  for (const char* function :
       {"cuInit", "cuDeviceGet", "cuDeviceGetName", "cuDeviceTotalMem", "cuDeviceGetAttribute",
        "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent", "cuModuleLoadData", "cuModuleGetFunction",
        "cuCtxSetCurrent", "cuMemAlloc", "cuMemAllocHost", "cuStreamCreate", "cuMemsetD8Async",
        "cuMemcpyAsync", "cuLaunchKernel", "cuStreamSynchronize"}) {
    for (const CudaError error : {kLaunchFailed, kInvalidValue}) {
      for (const bool stays : {false, true}) {
        EXPECT_THAT(CreateWith(function, error, stays), IsUnavailable(function)) << function;
        fake_cuda::Reset();
      }
    }
  }
}

TEST_F(CudaDeviceTest, OnlyAnErrorThatStaysIsALostDevice) {
  const auto expect = [](Reason reason, CudaError error, bool stays) {
    {
      ASSERT_OK(device, CudaDevice::Open());
      ASSERT_THAT(device->MakeCurrent(), IsOk());
      fake_cuda::Fail("cuStreamSynchronize", 1, error, stays);
      const absl::Status status = CudaStatus(Cuda().cuStreamSynchronize(nullptr), "a call");
      EXPECT_EQ(proto::PartsOf(status).reason, reason) << status;
    }
    fake_cuda::Reset();
  };
  expect(Reason::kBudgetFull, CudaError::kOutOfMemory, false);
  expect(Reason::kInternal, kInvalidValue, false);
  expect(Reason::kInternal, kUnknown, false);
  for (const CudaError error : {kIllegalAddress, CudaError::kOutOfMemory, kUnknown}) {
    expect(Reason::kDeviceFault, error, true);
  }
}

// Vectors more than 4 GiB apart, in place. Only the touched pages of the memory exist.
TEST_F(CudaDeviceTest, DistancesPast32Bits) {
  constexpr int64_t kToken = (int64_t{1} << 31) + 8;  // elements of 2 bytes
  constexpr int64_t kHeadDim = 16;
  ASSERT_OK(device, CudaDevice::Open());
  ASSERT_THAT(device->MakeCurrent(), IsOk());
  void* memory = nullptr;
  ASSERT_EQ(Cuda().cuMemAlloc(&memory, 2 * (kToken + 2 * kHeadDim)), CudaError::kSuccess);
  auto* const data = static_cast<uint16_t*>(memory);
  std::memset(data + kToken, 0, 4 * kHeadDim);
  data[kToken + kHeadDim] = 0x3f80;  // 1, the second token's second head
  const uint16_t gap = data[2 * kHeadDim];
  const std::vector<float> row(kHeadDim, 0.5F);
  DeviceJob job = {.rows = {.one_row = row.data()}};
  job.job.input = job.job.output = memory;
  job.job.input_strides = job.job.output_strides = {kToken, kHeadDim};
  job.job.tokens = job.job.heads = 2;
  job.job.head_dim = kHeadDim;
  job.job.dtype = DType::kBFloat16;
  job.job.geometry = {.pairs = kHeadDim / 2, .partner = kHeadDim / 2};
  EXPECT_THAT(DeviceExecutor(0).Enqueue({&job, 1}, 0, {}), IsOk());
  EXPECT_EQ(data[kToken + kHeadDim], 0x3f00);                 // 1 * 0.5
  EXPECT_EQ(data[kToken + kHeadDim + kHeadDim / 2], 0x3f00);  // 1 * 0.5
  EXPECT_EQ(data[kToken], 0);
  EXPECT_EQ(data[2 * kHeadDim], gap) << "behind the first token";
  Cuda().cuMemFree(memory);
}

TEST_F(CudaDeviceTest, ErrorsSayWhichCallFailed) {
  EXPECT_THAT(CudaStatus(CudaError::kSuccess, "cuMemFree"), IsOk());
  EXPECT_THAT(CudaStatus(kIllegalAddress, "cuMemFree"),
              StatusIs(absl::StatusCode::kInternal,
                       "cuda: cuMemFree: an illegal memory access was encountered"));
}

}  // namespace
}  // namespace rope::kernels
