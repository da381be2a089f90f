#include "kernels/backend/cuda/cuda_runtime.h"

#include <gtest/gtest.h>

#include "kernels/backend/backend.h"
#include "kernels/backends.h"
#include "tests/support/fake_cudart_fixture.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

namespace fake_cuda = rope::testing::fake_cuda;

class CudaRuntimeTest : public rope::testing::FakeCudaTest {
 protected:
  static absl::Status CreateOn(int device_count_error) {
    fake_cuda::SetDeviceCountError(device_count_error);
    return CreateBackend("cuda", {}).status();
  }
};

TEST_F(CudaRuntimeTest, DeviceIsDescribed) {
  ASSERT_OK(detail, FindCudaDevice());
  EXPECT_EQ(*detail, "Fake GPU, compute capability 9.0, 132 multiprocessors, 1024 MiB");
}

TEST_F(CudaRuntimeTest, DriverThatIsTooOldIsUnavailable) {
  EXPECT_THAT(CreateOn(cudaErrorInsufficientDriver),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("the NVIDIA driver is for CUDA 12.2, this build for 1"),
                             HasSubstr("CUDA driver version is insufficient"))));
}

TEST_F(CudaRuntimeTest, NoDriverIsUnavailable) {
  EXPECT_THAT(
      CreateOn(cudaErrorStubLibrary),
      StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr("no NVIDIA driver is installed"),
                                                     HasSubstr("CUDA driver is a stub library"))));
}

TEST_F(CudaRuntimeTest, DriverWithoutADeviceIsUnavailable) {
  EXPECT_THAT(CreateOn(cudaErrorNoDevice),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("the NVIDIA driver sees no GPU"),
                             HasSubstr("no CUDA-capable device is detected"))));
}

TEST_F(CudaRuntimeTest, DeviceThatTheKernelsWereNotBuiltForIsUnavailable) {
  for (const cudaError_t error :
       {cudaErrorNoKernelImageForDevice, cudaErrorUnsupportedPtxVersion}) {
    fake_cuda::Fail("cudaFuncGetAttributes", 1, error);
    EXPECT_THAT(CreateBackend("cuda", {}).status(),
                IsUnavailable("this build has no kernels for Fake GPU"));
  }
}

TEST_F(CudaRuntimeTest, DeviceWithoutRoomForAContextIsUnavailable) {
  fake_cuda::Fail("cudaFree", 1, cudaErrorMemoryAllocation);
  EXPECT_THAT(CreateBackend("cuda", {}).status(),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("GPU 0 gives this process no context: Fake GPU"),
                             HasSubstr("cudaFree: out of memory"))));
}

TEST_F(CudaRuntimeTest, DeviceThatFailsAtTheStartIsUnavailable) {
  for (const char* function :
       {"cudaGetDeviceProperties", "cudaSetDevice", "cudaFree", "cudaFuncGetAttributes",
        "cudaMalloc", "cudaMemset", "cudaDeviceSynchronize", "cudaMallocHost",
        "cudaStreamCreateWithFlags", "cudaMemcpyAsync", "cudaLaunchKernel",
        "cudaStreamSynchronize"}) {
    for (const cudaError_t error : {cudaErrorLaunchFailure, cudaErrorInvalidValue}) {
      for (const bool stays : {false, true}) {
        fake_cuda::Fail(function, 1, error, stays);
        EXPECT_THAT(CreateBackend("cuda", {}).status(), IsUnavailable(function)) << function;
        fake_cuda::Reset();
      }
    }
  }
}

TEST_F(CudaRuntimeTest, OnlyAnErrorThatStaysIsALostDevice) {
  const auto reason_of = [](cudaError_t error, bool stays) {
    fake_cuda::Fail("cudaStreamSynchronize", 1, error, stays);
    const Reason reason = ReasonOf(cudaStreamSynchronize(nullptr));
    fake_cuda::Reset();
    return reason;
  };
  EXPECT_EQ(reason_of(cudaErrorMemoryAllocation, false), Reason::kBudgetFull);
  for (const cudaError_t error : {cudaErrorInvalidValue, cudaErrorLaunchOutOfResources,
                                  cudaErrorSystemNotReady, cudaErrorUnknown}) {
    EXPECT_EQ(reason_of(error, false), Reason::kInternal) << error;
  }
  for (const cudaError_t error : {cudaErrorIllegalAddress, cudaErrorECCUncorrectable,
                                  cudaErrorMemoryAllocation, cudaErrorUnknown}) {
    EXPECT_EQ(reason_of(error, true), Reason::kDeviceFault) << error;
  }
}

TEST_F(CudaRuntimeTest, ErrorsSayWhichCallFailed) {
  EXPECT_THAT(CudaStatus(cudaSuccess, "cudaFree"), IsOk());
  EXPECT_THAT(CudaStatus(cudaErrorIllegalAddress, "cudaFree"),
              StatusIs(absl::StatusCode::kInternal,
                       "cuda: cudaFree: an illegal memory access was encountered"));
}

}  // namespace
}  // namespace rope::kernels
