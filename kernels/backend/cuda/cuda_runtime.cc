#include "kernels/backend/cuda/cuda_runtime.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/backend/cuda/cuda_job.h"
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
  const std::string no_context = "GPU 0 gives this process no context: " + detail;
  error = cudaSetDevice(0);
  if (error != cudaSuccess) return Unavailable(error, "cudaSetDevice", no_context);
  error = cudaFree(nullptr);  // makes the context, if cudaSetDevice has not
  if (error != cudaSuccess) return Unavailable(error, "cudaFree", no_context);
  error = CheckCudaKernels();
  if (error == cudaErrorInvalidDeviceFunction || error == cudaErrorNoKernelImageForDevice ||
      error == cudaErrorUnsupportedPtxVersion) {
    return Unavailable(error, "cudaFuncGetAttributes", "this build has no kernels for " + detail);
  }
  if (error != cudaSuccess) {
    return Unavailable(error, "cudaFuncGetAttributes",
                       "GPU 0 does not load the kernels: " + detail);
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

namespace {

// A row that turns a quarter, so that results are exact: (a, b) -> (-b, a).
TablePage QuarterTurn(int64_t columns) {
  std::vector<float> values(static_cast<size_t>(2 * columns), 0.0F);
  std::fill(values.begin() + columns, values.end(), 1.0F);
  return {1, columns, std::move(values)};
}

// One job of a kernel: a head of fp32.
class Trial {
 public:
  Trial(const char* kernel, int64_t head_dim, float scale)
      : kernel_(kernel), page_(QuarterTurn(head_dim / 2)) {
    for (int64_t i = 0; i < head_dim; ++i) input_.push_back(static_cast<float>(i + 1));
    output_.resize(input_.size());
    job_.input = input_.data();
    job_.output = output_.data();
    job_.input_strides = job_.output_strides = {head_dim, head_dim};
    job_.tokens = 1;
    job_.heads = 1;
    job_.head_dim = head_dim;
    job_.geometry = {Pairing::kHalf, head_dim / 2, 0, head_dim / 2};
    job_.rows = {&row_, 1};
    job_.scale = scale;
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  absl::Status Run(Backend& backend, size_t copies) {
    ROPE_RETURN_IF_ERROR(backend.Rotate(std::vector<RotateJob>(copies, job_)));
    const size_t half = input_.size() / 2;
    for (size_t i = 0; i < input_.size(); ++i) {
      const float want = job_.scale * (i < half ? -input_[i + half] : input_[i - half]);
      if (output_[i] == want) continue;
      return MakeError(Reason::kInternal, StrCat("cuda: result ", i, " of ", kernel_), output_[i],
                       want);
    }
    return absl::OkStatus();
  }

 private:
  const char* kernel_;
  const TablePage page_;
  const RowRef row_ = {&page_, 0};
  std::vector<float> input_;
  std::vector<float> output_;
  RotateJob job_;
};

}  // namespace

absl::Status CheckCudaBackend(Backend& backend) {
  Trial trials[] = {{"RotateVector", 8, 1}, {"RotateScalar", 6, 1}, {"RotateFused", 8, 2}};
  for (Trial& trial : trials) {
    ROPE_RETURN_IF_ERROR(trial.Run(backend, 1));
    ROPE_RETURN_IF_ERROR(trial.Run(backend, kCudaJobsByValue + 1));
  }
  return absl::OkStatus();
}

}  // namespace rope::kernels
