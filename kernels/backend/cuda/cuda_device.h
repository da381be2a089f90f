// CudaDevice: a GPU, its context, and this build's kernels in it. CudaCurrent: a context on this
// thread. CheckCudaKernels: whether the kernels compute what they should.
//
// Threading:  Any thread; several threads at once on different streams.
// Errors:     Open: UNAVAILABLE. Launch returns a CudaError, success included.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_DEVICE_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_DEVICE_H_

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend/cuda/cuda_driver.h"
#include "kernels/backend/cuda/cuda_plan.h"
#include "kernels/backend/rotate_job.h"

namespace rope::kernels {

// The kernels, as PTX; empty in a build without nvcc (cuda_ptx.cc.in).
extern const char* const kCudaPtx;

class CudaDevice {
 public:
  // Loads the kernels into the primary context of the GPU, which stays for the life of the process.
  // UNAVAILABLE: the driver or the GPU is missing or too old; the message says which.
  static absl::StatusOr<CudaDevice> Open(int ordinal = 0);

  const std::string& name() const { return name_; }      // "cuda:0"
  const std::string& detail() const { return detail_; }  // for people
  void* context() const { return context_; }

  // Makes the context current on this thread: before anything else, and before the device goes.
  absl::Status MakeCurrent() const;

  // Enqueues the launches of `plan`. `jobs` is a copy of plan.jobs in device memory. The caller
  // keeps jobs, rows and tensors until the launches have run. No launch follows a failed one.
  // Neither allocates nor synchronises, so a stream in capture mode records kernel nodes of a
  // graph.
  CudaError Launch(const CudaPlan& plan, const CudaJob* jobs, CUstream_st* stream) const;
  CudaError Launch(const CudaRectangleLaunch& launch, CUstream_st* stream) const;

 private:
  CudaDevice() = default;
  absl::Status LoadKernels(const std::string& words);

  std::string name_;
  std::string detail_;
  void* context_ = nullptr;
  std::unique_ptr<void, CudaRelease<&CudaDriver::cuModuleUnload>> module_;
  std::array<void*, 3> lists_ = {};  // of each CudaKernel
  std::array<void*, kCudaRectangleKernels> rectangles_ = {};
};

// Has a context current on this thread for its own life, and then again the one before.
class CudaCurrent {
 public:
  explicit CudaCurrent(void* context)
      : status_(CudaStatus(Cuda().cuCtxPushCurrent(context), "cuCtxPushCurrent")) {}
  ~CudaCurrent() {
    void* context = nullptr;
    if (status_.ok()) static_cast<void>(Cuda().cuCtxPopCurrent(&context));
  }
  CudaCurrent(const CudaCurrent&) = delete;
  CudaCurrent& operator=(const CudaCurrent&) = delete;

  const absl::Status& status() const { return status_; }

 private:
  const absl::Status status_;
};

// Runs each kernel once by `rotate` and compares the results. `has_lists`: the kernels over lists;
// `has_rectangles`: those over rectangles, and fp8 inputs. Returns its error; kInternal (backend.h)
// if a result is wrong.
using CudaRotate = std::function<absl::Status(absl::Span<const RotateJob> jobs)>;
absl::Status CheckCudaKernels(const CudaRotate& rotate, bool has_lists, bool has_rectangles);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_DEVICE_H_
