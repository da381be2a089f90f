#include "kernels/backend/cuda/cuda_driver.h"

#include <dlfcn.h>

#include "kernels/status_macros.h"

namespace rope::kernels {

absl::StatusOr<CudaDriver> LoadCudaDriver(const char* library) {
  constexpr int kVersion = 11030;
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);  // never closed
  if (handle == nullptr) {
    return NoCudaDevice(StrCat("no NVIDIA driver is installed (", dlerror(), ")"));
  }
  using Find = CudaError (*)(const char* name, void** function, int version, uint64_t flags);
  const auto find = reinterpret_cast<Find>(dlsym(handle, "cuGetProcAddress"));
  std::string words = "the NVIDIA driver is older than CUDA 11.3";
  if (find == nullptr) return NoCudaDevice(words);
  CudaDriver driver;
  auto error = CudaError::kSuccess;
#define ROPE_CUDA_FIND(name, parameters)                                      \
  if (error == CudaError::kSuccess) {                                         \
    error = find(#name, reinterpret_cast<void**>(&driver.name), kVersion, 0); \
  }
  ROPE_CUDA_FUNCTIONS(ROPE_CUDA_FIND)
#undef ROPE_CUDA_FIND
  if (error == CudaError::kStubLibrary) words = "no NVIDIA driver is installed, but a stub of it";
  if (error != CudaError::kSuccess) return NoCudaDevice(words);
  return driver;
}

const absl::StatusOr<CudaDriver>& FindCudaDriver() {
  static const auto& driver = *new auto(LoadCudaDriver());  // owned by the process
  return driver;
}

absl::StatusOr<CudaMemory> AllocateCuda(size_t bytes) {
  void* memory = nullptr;
  ROPE_RETURN_IF_ERROR(CudaStatus(Cuda().cuMemAlloc(&memory, bytes), "cuMemAlloc"));
  return CudaMemory(static_cast<char*>(memory));
}

absl::StatusOr<CudaPinnedMemory> AllocateCudaPinned(size_t bytes) {
  void* memory = nullptr;
  ROPE_RETURN_IF_ERROR(CudaStatus(Cuda().cuMemAllocHost(&memory, bytes), "cuMemAllocHost"));
  return CudaPinnedMemory(static_cast<char*>(memory));
}

absl::StatusOr<CudaStream> CreateCudaStream() {
  CUstream_st* stream = nullptr;
  ROPE_RETURN_IF_ERROR(
      CudaStatus(Cuda().cuStreamCreate(&stream, kCudaStreamNonBlocking), "cuStreamCreate"));
  return CudaStream(stream);
}

absl::Status CudaCopy(void* to, const void* from, size_t bytes, const CudaStream& stream) {
  return CudaStatus(Cuda().cuMemcpyAsync(to, from, bytes, stream.get()), "cuMemcpyAsync");
}

absl::Status CudaSynchronize(const CudaStream& stream) {
  return CudaStatus(Cuda().cuStreamSynchronize(stream.get()), "cuStreamSynchronize");
}

std::string CudaWords(CudaError error) {
  const char* words = nullptr;
  if (Cuda().cuGetErrorString(error, &words) != CudaError::kSuccess) {
    return StrCat("error ", static_cast<int>(error));
  }
  return words;
}

// An error that ends the context is returned by every later call. So the next call says whether the
// device is lost.
absl::Status CudaStatus(CudaError error, const char* call) {
  if (error == CudaError::kSuccess) return absl::OkStatus();
  Reason reason = error == CudaError::kOutOfMemory ? Reason::kBudgetFull : Reason::kInternal;
  size_t free = 0;
  size_t total = 0;
  if (Cuda().cuMemGetInfo(&free, &total) != CudaError::kSuccess) reason = Reason::kDeviceFault;
  return proto::MakeError({.reason = reason}, StrCat("cuda: ", call, ": ", CudaWords(error)));
}

absl::Status NoCudaDevice(const std::string& words) {
  return absl::UnavailableError("backend: got cuda, want a GPU that works: " + words);
}

}  // namespace rope::kernels
