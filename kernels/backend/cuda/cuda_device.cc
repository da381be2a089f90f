#include "kernels/backend/cuda/cuda_device.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/backend/cuda/cuda_job.h"
#include "kernels/dtype/element.h"
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
    case CudaError::kNotInitialized:  // the driver lives in the process that has started it
      words = "CUDA was started before this process was forked; spawn it instead";
      break;
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

absl::StatusOr<std::string> Describe(int device, const std::string& gpu) {
  const std::string words = gpu + " does not answer";
  char name[256] = {};
  size_t bytes = 0;
  int major = 0, minor = 0, multiprocessors = 0;
  ROPE_CUDA_START(cuDeviceGetName, (name, sizeof(name), device), words);
  ROPE_CUDA_START(cuDeviceTotalMem, (&bytes, device), words);
  ROPE_CUDA_START(cuDeviceGetAttribute, (&major, kCudaCapabilityMajor, device), words);
  ROPE_CUDA_START(cuDeviceGetAttribute, (&minor, kCudaCapabilityMinor, device), words);
  ROPE_CUDA_START(cuDeviceGetAttribute, (&multiprocessors, kCudaMultiprocessors, device), words);
  return absl::StrFormat("%s, compute capability %d.%d, %d multiprocessors, %d MiB", name, major,
                         minor, multiprocessors, bytes >> 20);
}

}  // namespace

absl::StatusOr<CudaDevice> CudaDevice::Open(int ordinal) {
  ROPE_RETURN_IF_ERROR(FindCudaDriver().status());
  const std::string gpu = StrCat("GPU ", ordinal);
  int device = 0;
  ROPE_CUDA_START(cuInit, (0), "the NVIDIA driver does not start");
  const CudaError found = Cuda().cuDeviceGet(&device, ordinal);
  if (found == CudaError::kInvalidDevice && ordinal != 0) {
    return NoCudaDevice(StrCat("the NVIDIA driver sees no ", gpu));
  }
  ROPE_RETURN_IF_ERROR(Started(found, "cuDeviceGet", "the NVIDIA driver does not start"));
  CudaDevice result;
  result.name_ = StrCat("cuda:", ordinal);
  ROPE_ASSIGN_OR_RETURN(result.detail_, Describe(device, gpu));
  ROPE_CUDA_START(cuDevicePrimaryCtxRetain, (&result.context_, device),
                  gpu + " gives this process no context: ", result.detail_);
  const CudaCurrent current(result.context_);
  if (!current.status().ok()) return NoCudaDevice(std::string(current.status().message()));
  ROPE_RETURN_IF_ERROR(result.LoadKernels(gpu + " does not load the kernels: "));
  return result;
}

absl::Status CudaDevice::LoadKernels(const std::string& words) {
  void* module = nullptr;
  ROPE_CUDA_START(cuModuleLoadData, (&module, kCudaPtx), words, detail_);
  module_.reset(module);
  void** function = lists_.data();
  for (const char* name : {"RotateVector", "RotateScalar", "RotateFused"}) {
    ROPE_CUDA_START(cuModuleGetFunction, (function++, module, name), words, detail_);
  }
  for (uint32_t kernel = 0; kernel < kCudaRectangleKernels; ++kernel) {
    const std::string name = CudaRectangleName(kernel);
    if (name.empty()) continue;
    ROPE_CUDA_START(cuModuleGetFunction, (&rectangles_[kernel], module, name.c_str()), words,
                    detail_);
  }
  return absl::OkStatus();
}

absl::Status CudaDevice::MakeCurrent() const {
  return CudaStatus(Cuda().cuCtxSetCurrent(context_), "cuCtxSetCurrent");
}

CudaError CudaDevice::Launch(const CudaRectangleLaunch& launch, CUstream_st* stream) const {
  void* parameters[] = {const_cast<CudaRectangle*>(&launch.work)};  // the driver copies it
  return Cuda().cuLaunchKernel(rectangles_[launch.kernel], launch.blocks.x, launch.blocks.y,
                               launch.blocks.z, launch.threads.x, launch.threads.y,
                               launch.threads.z, 0, stream, parameters, nullptr);
}

CudaError CudaDevice::Launch(const CudaPlan& plan, const CudaJob* jobs, CUstream_st* stream) const {
  if (plan.rectangle.has_value()) return Launch(*plan.rectangle, stream);
  for (const CudaLaunch& launch : plan.launches) {
    const CudaJob* list = jobs + launch.first_job;
    uint32_t count = launch.jobs;
    void* parameters[] = {&list, &count};
    const CudaError error =
        Cuda().cuLaunchKernel(lists_[static_cast<size_t>(launch.kernel)], launch.blocks, 1, 1,
                              launch.threads, 1, 1, 0, stream, parameters, nullptr);
    if (error != CudaError::kSuccess) return error;
  }
  return CudaError::kSuccess;
}

namespace {

// What a kernel is tried with.
struct Trial {
  std::string kernel;
  CudaOps ops = CudaOps::kTurn;
  DType dtype = DType::kFloat32;
  Pairing pairing = Pairing::kHalf;
  size_t head_dim = 32;
  size_t jobs = 1;  // two are a list, because their rows differ
};

// Channels 1, 2, ... rounded to the dtype.
std::vector<uint8_t> Channels(const Trial& trial) {
  const auto bytes = static_cast<size_t>(ElementBytes(trial.dtype));
  std::vector<uint8_t> channels(trial.head_dim * bytes);
  for (size_t i = 0; i < trial.head_dim; ++i) {
    WriteElement(static_cast<double>(i + 1), trial.dtype, channels.data() + i * bytes);
  }
  return channels;
}

// Whether every pair of channels (a, b) has become (-b, a) times `scale`.
absl::Status Compare(const Trial& trial, double scale, const std::vector<uint8_t>& input,
                     const std::vector<uint8_t>& output) {
  const auto element = [&](const std::vector<uint8_t>& tensor, size_t i) {
    const auto bytes = static_cast<size_t>(ElementBytes(trial.dtype));
    return ReadElement(tensor.data() + i * bytes, trial.dtype);
  };
  const size_t distance = trial.pairing == Pairing::kHalf ? trial.head_dim / 2 : 1;
  for (size_t i = 0; i < trial.head_dim; ++i) {
    const bool first = i / distance % 2 == 0;
    const double want =
        scale * (first ? -element(input, i + distance) : element(input, i - distance));
    const double got = element(output, i);
    if (got == want) continue;
    return MakeError(Reason::kInternal, StrCat("cuda: result ", i, " of ", trial.kernel), got,
                     want);
  }
  return absl::OkStatus();
}

// Turns a head by a quarter, so that results are exact. Fused: with a norm by which the head, of 32
// channels, is divided by 32, and a scale of 64.
absl::Status Try(const CudaRotate& rotate, const Trial& trial) {
  const size_t half = trial.head_dim / 2;
  std::vector<float> row(half, 0.0F);
  row.resize(trial.head_dim, 1.0F);
  const TablePage page(1, static_cast<int64_t>(half), std::move(row));
  const std::vector<RowRef> rows(trial.jobs, {&page, 0});
  const std::vector<uint8_t> input = Channels(trial);
  std::vector<uint8_t> output(input.size());
  RotateJob job;
  job.input = input.data();
  job.output = output.data();
  job.tokens = 1;
  job.heads = 1;
  job.head_dim = static_cast<int64_t>(trial.head_dim);
  job.input_strides = job.output_strides = {job.head_dim, job.head_dim};
  job.dtype = trial.dtype;
  job.geometry = {trial.pairing, job.head_dim / 2, 0, job.head_dim / 2};
  if (trial.ops == CudaOps::kStepwise) job.arithmetic = PairArithmetic::kTurnStepwise;
  const bool fused = trial.ops == CudaOps::kFused;
  if (fused) job.norm = RmsNorm{.eps = 666.5F};  // 32 * 32 - (1 * 1 + ... + 32 * 32) / 32
  if (fused) job.scale = 64;
  std::vector<RotateJob> jobs(trial.jobs, job);
  for (size_t i = 0; i < jobs.size(); ++i) jobs[i].rows = absl::MakeConstSpan(rows).subspan(i, 1);
  ROPE_RETURN_IF_ERROR(rotate(jobs));
  return Compare(trial, fused ? 2 : 1, input, output);
}

}  // namespace

absl::Status CheckCudaKernels(const CudaRotate& rotate, bool has_lists, bool has_rectangles) {
  const Trial lists[] = {{.kernel = "RotateVector", .jobs = 2},
                         {.kernel = "RotateScalar", .head_dim = 6},
                         {.kernel = "RotateFused", .ops = CudaOps::kFused, .jobs = 2}};
  for (const Trial& trial : lists) {
    if (has_lists) ROPE_RETURN_IF_ERROR(Try(rotate, trial));
  }
  if (!has_rectangles) return absl::OkStatus();
  for (const CudaOps ops : {CudaOps::kTurn, CudaOps::kStepwise, CudaOps::kFused}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16,
                              DType::kFloat8E4M3, DType::kFloat8E5M2}) {
      for (const Pairing pairing : {Pairing::kHalf, Pairing::kInterleaved}) {
        std::string name = CudaRectangleName(CudaRectangleKernel(ops, dtype, pairing));
        if (name.empty()) continue;
        ROPE_RETURN_IF_ERROR(Try(rotate, {std::move(name), ops, dtype, pairing}));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace rope::kernels
