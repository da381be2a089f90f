#include "kernels/backend/cuda/cuda_device.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/backend/cuda/cuda_job.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"

namespace rope::kernels {
namespace {

// The status of a call at the start. `words` and `detail` say what it means that the call failed,
// unless the error does.
absl::Status Started(CudaError error, const char* call, std::string words,
                     const std::string& detail = "") {
  switch (error) {
    case CudaError::kSuccess:
      return absl::OkStatus();
    case CudaError::kNoDevice:
    case CudaError::kInvalidDevice:
      words = "the NVIDIA driver sees no GPU";
      break;
    case CudaError::kNoBinaryForGpu:
    case CudaError::kInvalidPtx:
    case CudaError::kUnsupportedPtxVersion:
      words = "this build has no kernels for ";
      break;
    default:
      break;
  }
  return NoCudaDevice(StrCat(words, detail, " (", call, ": ", CudaWords(error), ")"));
}
#define ROPE_CUDA_START(name, parameters, ...) \
  ROPE_RETURN_IF_ERROR(Started(Cuda().name parameters, #name, __VA_ARGS__))

absl::StatusOr<std::string> Describe(int device) {
  constexpr char kWords[] = "GPU 0 does not answer";
  char name[256] = {};
  size_t bytes = 0;
  int major = 0, minor = 0, multiprocessors = 0;
  ROPE_CUDA_START(cuDeviceGetName, (name, sizeof(name), device), kWords);
  ROPE_CUDA_START(cuDeviceTotalMem, (&bytes, device), kWords);
  ROPE_CUDA_START(cuDeviceGetAttribute, (&major, kCudaCapabilityMajor, device), kWords);
  ROPE_CUDA_START(cuDeviceGetAttribute, (&minor, kCudaCapabilityMinor, device), kWords);
  ROPE_CUDA_START(cuDeviceGetAttribute, (&multiprocessors, kCudaMultiprocessors, device), kWords);
  return absl::StrFormat("%s, compute capability %d.%d, %d multiprocessors, %d MiB", name, major,
                         minor, multiprocessors, bytes >> 20);
}

}  // namespace

absl::StatusOr<CudaDevice> CudaDevice::Open() {
  ROPE_RETURN_IF_ERROR(FindCudaDriver().status());
  constexpr char kDriver[] = "the NVIDIA driver does not start";
  int device = 0;
  ROPE_CUDA_START(cuInit, (0), kDriver);
  ROPE_CUDA_START(cuDeviceGet, (&device, 0), kDriver);
  CudaDevice result;
  ROPE_ASSIGN_OR_RETURN(result.detail_, Describe(device));
  constexpr char kContext[] = "GPU 0 gives this process no context: ";
  ROPE_CUDA_START(cuDevicePrimaryCtxRetain, (&result.context_, device), kContext, result.detail_);
  ROPE_CUDA_START(cuCtxSetCurrent, (result.context_), kContext, result.detail_);
  ROPE_RETURN_IF_ERROR(result.LoadKernels());
  return result;
}

absl::Status CudaDevice::LoadKernels() {
  constexpr char kWords[] = "GPU 0 does not load the kernels: ";
  void* module = nullptr;
  ROPE_CUDA_START(cuModuleLoadData, (&module, kCudaPtx), kWords, detail_);
  module_.reset(module);
  void** function = functions_.data();
  for (const char* name : {"RotateVector", "RotateVectorByValue", "RotateScalar",
                           "RotateScalarByValue", "RotateFused", "RotateFusedByValue"}) {
    ROPE_CUDA_START(cuModuleGetFunction, (function++, module, name), kWords, detail_);
  }
  return absl::OkStatus();
}

absl::Status CudaDevice::MakeCurrent() const {
  return CudaStatus(Cuda().cuCtxSetCurrent(context_), "cuCtxSetCurrent");
}

CudaError CudaDevice::Launch(const CudaPlan& plan, const CudaJob* jobs, CUstream_st* stream) const {
  for (const CudaLaunch& launch : plan.launches) {
    const bool by_value = launch.jobs <= kCudaJobsByValue;
    CudaJobs list;
    if (by_value) std::copy_n(plan.jobs.data() + launch.first_job, launch.jobs, list.jobs);
    const CudaJob* table = jobs + launch.first_job;
    uint32_t count = launch.jobs;
    void* parameters[] = {by_value ? static_cast<void*>(&list) : &table, &count};
    void* const function = functions_[2 * static_cast<size_t>(launch.kernel) + by_value];
    const CudaError error = Cuda().cuLaunchKernel(function, launch.blocks, 1, 1, launch.threads, 1,
                                                  1, 0, stream, parameters, nullptr);
    if (error != CudaError::kSuccess) return error;
  }
  return CudaError::kSuccess;
}

namespace {

// Turns a head of fp32 by a quarter, so that results are exact: (a, b) -> (-b, a).
absl::Status Try(Backend& backend, const char* kernel, size_t head_dim, float scale,
                 size_t copies) {
  const size_t half = head_dim / 2;
  std::vector<float> row(half, 0.0F);
  row.resize(head_dim, 1.0F);
  const TablePage page(1, static_cast<int64_t>(half), std::move(row));
  const RowRef rows[] = {{&page, 0}};
  std::vector<float> input(head_dim), output(head_dim);
  std::iota(input.begin(), input.end(), 1.0F);
  RotateJob job;
  job.input = input.data();
  job.output = output.data();
  job.tokens = 1;
  job.heads = 1;
  job.head_dim = static_cast<int64_t>(head_dim);
  job.input_strides = job.output_strides = {job.head_dim, job.head_dim};
  job.geometry = {Pairing::kHalf, job.head_dim / 2, 0, job.head_dim / 2};
  job.rows = rows;
  job.scale = scale;
  ROPE_RETURN_IF_ERROR(backend.Rotate(std::vector<RotateJob>(copies, job)));
  for (size_t i = 0; i < head_dim; ++i) {
    const float want = scale * (i < half ? -input[i + half] : input[i - half]);
    if (output[i] == want) continue;
    return MakeError(Reason::kInternal, StrCat("cuda: result ", i, " of ", kernel), output[i],
                     want);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCudaBackend(Backend& backend) {
  for (const size_t copies : {size_t{1}, size_t{kCudaJobsByValue + 1}}) {
    ROPE_RETURN_IF_ERROR(Try(backend, "RotateVector", 8, 1, copies));
    ROPE_RETURN_IF_ERROR(Try(backend, "RotateScalar", 6, 1, copies));
    ROPE_RETURN_IF_ERROR(Try(backend, "RotateFused", 8, 2, copies));
  }
  return absl::OkStatus();
}

}  // namespace rope::kernels
