// What cuda_driver.h says of the driver, against CUDA's own header.
#include "kernels/backend/cuda/cuda_driver.h"

// After the list of functions: its macros give some of them the names of their versions.
#include <cuda.h>

namespace rope::kernels {
namespace {

template <typename Ours, typename Cudas>
struct SameCall;
template <typename... Ours, typename... Cudas>
struct SameCall<CudaError(Ours...), CUresult(Cudas...)> {
  // By registers: addresses of the device and enums have other types.
  static constexpr bool value =
      sizeof...(Ours) == sizeof...(Cudas) && ((sizeof(Ours) == sizeof(Cudas)) && ...);
};

#define ROPE_CUDA_COMPARE(name, parameters) \
  static_assert(SameCall<CudaError parameters, decltype(::name)>::value);
ROPE_CUDA_FUNCTIONS(ROPE_CUDA_COMPARE)
#undef ROPE_CUDA_COMPARE

static_assert(sizeof(CudaError) == sizeof(CUresult));
static_assert(static_cast<int>(CudaError::kSuccess) == CUDA_SUCCESS);
static_assert(static_cast<int>(CudaError::kOutOfMemory) == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(static_cast<int>(CudaError::kNotInitialized) == CUDA_ERROR_NOT_INITIALIZED);
static_assert(static_cast<int>(CudaError::kStubLibrary) == CUDA_ERROR_STUB_LIBRARY);
static_assert(static_cast<int>(CudaError::kNoDevice) == CUDA_ERROR_NO_DEVICE);
static_assert(static_cast<int>(CudaError::kInvalidDevice) == CUDA_ERROR_INVALID_DEVICE);
static_assert(static_cast<int>(CudaError::kNoBinaryForGpu) == CUDA_ERROR_NO_BINARY_FOR_GPU);
static_assert(static_cast<int>(CudaError::kInvalidPtx) == CUDA_ERROR_INVALID_PTX);
static_assert(static_cast<int>(CudaError::kUnsupportedPtxVersion) ==
              CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
static_assert(static_cast<int>(CudaError::kCaptureUnsupported) ==
              CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
static_assert(static_cast<int>(CudaError::kCaptureWrongThread) ==
              CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
static_assert(kCudaMemoryType == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(kCudaDeviceOrdinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(kCudaDeviceMemory == CU_MEMORYTYPE_DEVICE);
static_assert(kCudaMultiprocessors == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(kCudaCapabilityMajor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(kCudaCapabilityMinor == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(kCudaStreamNonBlocking == CU_STREAM_NON_BLOCKING);

}  // namespace
}  // namespace rope::kernels
