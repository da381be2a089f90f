// Owners of CUDA's resources, and its errors as statuses.
//
// Threading:  Owners are thread-compatible; functions may be called from any thread.
// Ownership:  An owner gives its resource back when it is destroyed. Memory and streams in use by
//             work that has not finished must not be destroyed: synchronise first.
// Errors:     INTERNAL: `cuda: <call>: <CUDA's own words>`. FindCudaDevice: UNAVAILABLE.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_RUNTIME_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_RUNTIME_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rope::kernels {

// OK for cudaSuccess. Takes the error away from the thread's "last error".
absl::Status CudaStatus(cudaError_t error, const char* call);

// Whether the first device is there and runs this build's kernels; its description for people.
// UNAVAILABLE: no driver, one that is too old, no GPU, or one that is too old; says which.
absl::StatusOr<std::string> FindCudaDevice();

class CudaStream {
 public:
  static absl::StatusOr<CudaStream> Create();
  CudaStream(CudaStream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  CudaStream& operator=(CudaStream&&) = delete;
  ~CudaStream();

  cudaStream_t get() const { return stream_; }
  absl::Status Synchronize() const;

 private:
  explicit CudaStream(cudaStream_t stream) : stream_(stream) {}
  cudaStream_t stream_;
};

// Device memory, or host memory that the device copies from and to without a detour.
class CudaBuffer {
 public:
  enum class Kind { kDevice, kPinned };

  static absl::StatusOr<CudaBuffer> Create(Kind kind, int64_t bytes);
  CudaBuffer(CudaBuffer&& other) noexcept
      : kind_(other.kind_), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  CudaBuffer& operator=(CudaBuffer&&) = delete;
  ~CudaBuffer();

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  CudaBuffer(Kind kind, char* data, int64_t bytes) : kind_(kind), data_(data), bytes_(bytes) {}
  Kind kind_;
  char* data_;
  int64_t bytes_;
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_RUNTIME_H_
