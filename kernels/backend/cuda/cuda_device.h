// CudaDevice: the first GPU, its context, and this build's kernels in it. CheckCudaBackend: whether
// the kernels compute what they should.
//
// Threading:  Any thread; several threads at once on different streams.
// Errors:     Open: UNAVAILABLE. Launch returns a CudaError, success included.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_DEVICE_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_DEVICE_H_

#include <array>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/cuda/cuda_driver.h"
#include "kernels/backend/cuda/cuda_plan.h"

namespace rope::kernels {

// The kernels, as PTX; empty in a build without nvcc (cuda_ptx.cc.in).
extern const char* const kCudaPtx;

class CudaDevice {
 public:
  // Loads the kernels into the primary context of the first GPU, which stays for the life of the
  // process and is then current on this thread. UNAVAILABLE: the driver or the GPU is missing or
  // too old; the message says which.
  static absl::StatusOr<CudaDevice> Open();

  const std::string& detail() const { return detail_; }  // for people

  // Makes the context current on this thread: before anything else, and before the device goes.
  absl::Status MakeCurrent() const;

  // Enqueues the launches of `plan`. `jobs` is a copy of plan.jobs in device memory. The caller
  // keeps jobs, rows and tensors until the launches have run. No launch follows a failed one.
  // Neither allocates nor synchronises, so a stream in capture mode records kernel nodes of a
  // graph.
  CudaError Launch(const CudaPlan& plan, const CudaJob* jobs, CUstream_st* stream) const;

 private:
  CudaDevice() = default;
  absl::Status LoadKernels();

  std::string detail_;
  void* context_ = nullptr;
  std::unique_ptr<void, CudaRelease<&CudaDriver::cuModuleUnload>> module_;
  std::array<void*, 3> lists_ = {};  // of each CudaKernel
  std::array<void*, kCudaRectangleKernels> rectangles_ = {};
};

// Runs each kernel of a backend once and compares the results. `has_rectangles`: it plans them, and
// has fp8 inputs then. Returns the backend's error; kInternal (backend.h) if a result is wrong.
absl::Status CheckCudaBackend(Backend& backend, bool has_rectangles);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_DEVICE_H_
