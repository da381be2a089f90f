// RAII owners of CUDA resources, and CUDA errors as absl::Status.
//
// Threading:  Owners are thread-compatible; functions may be called from any thread.
// Ownership:  An owner releases its resource when it is destroyed. Synchronise before you destroy
//             memory or a stream that unfinished work uses.
// Errors:     `cuda: <call>: <CUDA's message>`, with the class of backend.h. FindCudaDevice:
//             UNAVAILABLE.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_RUNTIME_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_RUNTIME_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/error.h"

namespace rope::kernels {

// The class of an error that a call has just returned: kDeviceFault if the device answers no other
// call either; else kBudgetFull (memory) or kInternal (this call is refused). Clears the thread's
// last error.
Reason ReasonOf(cudaError_t error);

// Converts a CUDA error to a status and clears the thread's last error. REQUIRES: as ReasonOf.
absl::Status CudaStatus(cudaError_t error, const char* call);

// UNAVAILABLE: "backend: got cuda, want a GPU that works: <words>".
absl::Status NoCudaDevice(const std::string& words);

// Checks that the first device exists and runs this build's kernels. Returns its description for
// people. UNAVAILABLE: the driver or the GPU is missing or too old; the message says which.
absl::StatusOr<std::string> FindCudaDevice();

// Free and total memory of the current device, for people: "20 of 143771 MiB are free".
std::string CudaMemoryWords();

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

// Device memory, or pinned host memory, which the device can copy from and to directly.
class CudaBuffer {
 public:
  enum class Kind { kDevice, kPinned };

  static absl::StatusOr<CudaBuffer> Create(Kind kind, int64_t bytes);
  CudaBuffer(CudaBuffer&& other) noexcept
      : kind_(other.kind_), data_(std::exchange(other.data_, nullptr)) {}
  CudaBuffer& operator=(CudaBuffer&&) = delete;
  ~CudaBuffer();

  char* data() const { return data_; }

 private:
  CudaBuffer(Kind kind, char* data) : kind_(kind), data_(data) {}
  Kind kind_;
  char* data_;
};

// CheckCudaBackend: runs each kernel of a backend once, each with its jobs by value and in device
// memory, and compares the results.
//
// Errors:     The backend's own; kInternal (backend.h) if a result is wrong.

absl::Status CheckCudaBackend(Backend& backend);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_RUNTIME_H_
