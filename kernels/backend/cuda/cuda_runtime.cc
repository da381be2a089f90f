#include "kernels/backend/cuda/cuda_runtime.h"

#include "absl/strings/str_format.h"
#include "kernels/backend/cuda/cuda_launch.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"

namespace rope::kernels {
namespace {

std::string Version(int version) {  // CUDA's encoding: 1000 * major + 10 * minor
  return absl::StrFormat("%d.%d", version / 1000, version % 1000 / 10);
}

// Whether the driver is missing or too old; CUDA's message does not distinguish the two.
std::string DriverWords() {
  int version = 0;
  const cudaError_t error = cudaDriverGetVersion(&version);
  static_cast<void>(cudaGetLastError());
  if (error != cudaSuccess || version == 0) return "no NVIDIA driver is installed";
  return absl::StrFormat("the NVIDIA driver is for CUDA %s, this build for %s", Version(version),
                         Version(CUDART_VERSION));
}

absl::Status Unavailable(cudaError_t error, const char* call, const std::string& words) {
  static_cast<void>(cudaGetLastError());
  return NoCudaDevice(absl::StrFormat("%s (%s: %s)", words, call, cudaGetErrorString(error)));
}

}  // namespace

// An error that ends the context is returned by every later call, and cudaGetLastError does not
// clear it. So the next call says whether the device is lost.
Reason ReasonOf(cudaError_t error) {
  static_cast<void>(cudaGetLastError());
  size_t free = 0;
  size_t total = 0;
  const bool works = cudaMemGetInfo(&free, &total) == cudaSuccess;
  static_cast<void>(cudaGetLastError());
  if (!works) return Reason::kDeviceFault;
  return error == cudaErrorMemoryAllocation ? Reason::kBudgetFull : Reason::kInternal;
}

absl::Status CudaStatus(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  return proto::MakeError({.reason = ReasonOf(error)},
                          absl::StrFormat("cuda: %s: %s", call, cudaGetErrorString(error)));
}

absl::Status NoCudaDevice(const std::string& words) {
  return absl::UnavailableError("backend: got cuda, want a GPU that works: " + words);
}

std::string CudaMemoryWords() {
  size_t free = 0;
  size_t total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return "free memory is unknown";
  }
  return absl::StrFormat("%d of %d MiB are free", free >> 20, total >> 20);
}

absl::StatusOr<std::string> FindCudaDevice() {
  int count = 0;  // CUDA does not write it if there is no driver
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count == 0) error = cudaErrorNoDevice;
  if (error == cudaErrorNoDevice) {
    return Unavailable(error, "cudaGetDeviceCount", "the NVIDIA driver sees no GPU");
  }
  if (error != cudaSuccess) return Unavailable(error, "cudaGetDeviceCount", DriverWords());
  cudaDeviceProp properties;
  error = cudaGetDeviceProperties(&properties, 0);
  if (error != cudaSuccess) {
    return Unavailable(error, "cudaGetDeviceProperties", "GPU 0 does not answer");
  }
  const std::string detail = absl::StrFormat(
      "%s, compute capability %d.%d, %d multiprocessors, %d MiB", properties.name, properties.major,
      properties.minor, properties.multiProcessorCount, properties.totalGlobalMem >> 20);
  error = CheckCudaKernels();
  if (error != cudaSuccess) {
    return Unavailable(error, "cudaFuncGetAttributes", "this build has no kernels for " + detail);
  }
  return detail;
}

absl::StatusOr<CudaStream> CudaStream::Create() {
  cudaStream_t stream = nullptr;
  ROPE_RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                                  "cudaStreamCreateWithFlags"));
  return CudaStream(stream);
}

CudaStream::~CudaStream() {
  if (stream_ == nullptr) return;
  static_cast<void>(cudaStreamDestroy(stream_));
  static_cast<void>(cudaGetLastError());
}

absl::Status CudaStream::Synchronize() const {
  return CudaStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

absl::StatusOr<CudaBuffer> CudaBuffer::Create(Kind kind, int64_t bytes) {
  void* data = nullptr;
  const auto size = static_cast<size_t>(bytes);
  ROPE_RETURN_IF_ERROR(kind == Kind::kDevice
                           ? CudaStatus(cudaMalloc(&data, size), "cudaMalloc")
                           : CudaStatus(cudaMallocHost(&data, size), "cudaMallocHost"));
  return CudaBuffer(kind, static_cast<char*>(data));
}

CudaBuffer::~CudaBuffer() {
  if (data_ == nullptr) return;
  static_cast<void>(kind_ == Kind::kDevice ? cudaFree(data_) : cudaFreeHost(data_));
  static_cast<void>(cudaGetLastError());
}

}  // namespace rope::kernels
