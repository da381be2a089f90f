// The CUDA driver: the functions of libcuda.so.1 that the backend calls, and its errors as
// absl::Status. The library is loaded at first use; no CUDA library is linked, and no header of
// CUDA included, so every build has this file.
//
// The functions are those of CUDA 11.3, the first driver that finds them by name and version. An
// address of the device is a pointer here. cuda_driver_abi_test.cc compares the list with cuda.h.
//
// Threading:  Any thread. Functions that use memory, streams or kernels need a context that is
//             current on the calling thread (CudaDevice::MakeCurrent).
// Errors:     `cuda: <call>: <CUDA's message>`, with the class of backend.h. LoadCudaDriver:
//             UNAVAILABLE.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_DRIVER_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/error.h"

// What CUDA calls a stream, in the driver and in the runtime.
struct CUstream_st;

namespace rope::kernels {

// CUresult: these and others.
enum class CudaError : int {
  kSuccess = 0,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kStubLibrary = 34,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kNoBinaryForGpu = 209,
  kInvalidPtx = 218,
  kUnsupportedPtxVersion = 222,
  kCaptureUnsupported = 900,  // the first error about captures
  kCaptureWrongThread = 908,  // the last one
};

// CUdevice_attribute.
inline constexpr int kCudaMultiprocessors = 16;
inline constexpr int kCudaCapabilityMajor = 75;
inline constexpr int kCudaCapabilityMinor = 76;

inline constexpr unsigned kCudaStreamNonBlocking = 1;  // CU_STREAM_NON_BLOCKING

// CUpointer_attribute, and CUmemorytype.
inline constexpr int kCudaMemoryType = 2;
inline constexpr int kCudaDeviceOrdinal = 9;
inline constexpr unsigned kCudaDeviceMemory = 2;

// F(name, parameters)
#define ROPE_CUDA_FUNCTIONS(F)                                                                     \
  F(cuCtxPopCurrent, (void** context))                                                             \
  F(cuCtxPushCurrent, (void* context))                                                             \
  F(cuCtxSetCurrent, (void* context))                                                              \
  F(cuDeviceGet, (int* device, int ordinal))                                                       \
  F(cuDeviceGetAttribute, (int* value, int attribute, int device))                                 \
  F(cuDeviceGetName, (char* name, int bytes, int device))                                          \
  F(cuDevicePrimaryCtxRetain, (void** context, int device))                                        \
  F(cuDeviceTotalMem, (size_t * bytes, int device))                                                \
  F(cuGetErrorString, (CudaError error, const char** words))                                       \
  F(cuInit, (unsigned flags))                                                                      \
  F(cuLaunchKernel, (void* function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z,      \
                     unsigned threads_x, unsigned threads_y, unsigned threads_z,                   \
                     unsigned shared_bytes, CUstream_st* stream, void** parameters, void** extra)) \
  F(cuMemAlloc, (void** address, size_t bytes))                                                    \
  F(cuMemAllocHost, (void** address, size_t bytes))                                                \
  F(cuMemFree, (void* address))                                                                    \
  F(cuMemFreeHost, (void* address))                                                                \
  F(cuMemGetInfo, (size_t * free, size_t * total))                                                 \
  F(cuMemcpyAsync, (void* to, const void* from, size_t bytes, CUstream_st* stream))                \
  F(cuMemsetD8Async, (void* address, unsigned char value, size_t bytes, CUstream_st* stream))      \
  F(cuModuleGetFunction, (void** function, void* module, const char* name))                        \
  F(cuModuleLoadData, (void** module, const void* image))                                          \
  F(cuModuleUnload, (void* module))                                                                \
  F(cuPointerGetAttributes, (unsigned count, int* attributes, void** values, void* address))       \
  F(cuStreamCreate, (CUstream_st * *stream, unsigned flags))                                       \
  F(cuStreamDestroy, (CUstream_st * stream))                                                       \
  F(cuStreamIsCapturing, (CUstream_st * stream, int* state))                                       \
  F(cuStreamSynchronize, (CUstream_st * stream))

struct CudaDriver {
#define ROPE_CUDA_FUNCTION(name, parameters) CudaError(*name) parameters = nullptr;
  ROPE_CUDA_FUNCTIONS(ROPE_CUDA_FUNCTION)
#undef ROPE_CUDA_FUNCTION
};

// Loads the functions of `library`. UNAVAILABLE: there is no such library, or it is too old.
absl::StatusOr<CudaDriver> LoadCudaDriver(const char* library = "libcuda.so.1");

// The driver of this machine, which the first call loads, for the life of the process.
const absl::StatusOr<CudaDriver>& FindCudaDriver();

// Its functions. REQUIRES: FindCudaDriver() is OK.
inline const CudaDriver& Cuda() {
  return *FindCudaDriver();
}

// A deleter that calls a function of the driver. Synchronise before memory or a stream goes that
// unfinished work uses.
template <auto kFunction>
struct CudaRelease {
  template <typename T>
  void operator()(T* resource) const {
    static_cast<void>((Cuda().*kFunction)(resource));
  }
};
using CudaMemory = std::unique_ptr<char, CudaRelease<&CudaDriver::cuMemFree>>;
using CudaPinnedMemory = std::unique_ptr<char, CudaRelease<&CudaDriver::cuMemFreeHost>>;
using CudaStream = std::unique_ptr<CUstream_st, CudaRelease<&CudaDriver::cuStreamDestroy>>;

// As cuMemAlloc, cuMemAllocHost, and cuStreamCreate with kCudaStreamNonBlocking.
absl::StatusOr<CudaMemory> AllocateCuda(size_t bytes);
absl::StatusOr<CudaPinnedMemory> AllocateCudaPinned(size_t bytes);
absl::StatusOr<CudaStream> CreateCudaStream();

// Enqueues a copy; waits for all that the stream has.
absl::Status CudaCopy(void* to, const void* from, size_t bytes, const CudaStream& stream);
absl::Status CudaSynchronize(const CudaStream& stream);

// CUDA's message.
std::string CudaWords(CudaError error);

// The status of a call that has just returned `error`. Reasons: kDeviceFault if the device answers
// no other call either; else kBudgetFull (memory) or kInternal (this call is refused).
absl::Status CudaStatus(CudaError error, const char* call);

// UNAVAILABLE: "backend: got cuda, want a GPU that works: <words>".
absl::Status NoCudaDevice(const std::string& words);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_DRIVER_H_
