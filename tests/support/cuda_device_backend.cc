#include "tests/support/cuda_device_backend.h"

#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/backend/cuda/cuda_backend.h"
#include "kernels/backend/cuda/cuda_driver.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"

namespace rope::testing {
namespace {

using kernels::Cuda;
using kernels::CudaError;
using kernels::RotateJob;
using kernels::Strides;

void Copy(void* to, const void* from, size_t bytes) {
  ROPE_CHECK(Cuda().cuMemcpyAsync(to, from, bytes, nullptr) == CudaError::kSuccess);
  ROPE_CHECK(Cuda().cuStreamSynchronize(nullptr) == CudaError::kSuccess);
}

// A tensor in host memory, and its copy on the device.
class Moved {
 public:
  Moved(const RotateJob& job, const void* host, const Strides& strides, int64_t element_bytes)
      : job_(job), host_(host), strides_(strides), element_bytes_(element_bytes) {
    const int64_t last = (job.tokens - 1) * strides.token + (job.heads - 1) * strides.head;
    bytes_ = static_cast<size_t>((last + job.head_dim) * element_bytes);
    const auto shift = reinterpret_cast<uintptr_t>(host) % 256;
    void* memory = nullptr;
    ROPE_CHECK(Cuda().cuMemAlloc(&memory, bytes_ + shift) == CudaError::kSuccess);
    memory_.reset(static_cast<char*>(memory));
    data_ = memory_.get() + shift;
    Copy(data_, host, bytes_);
  }

  char* data() const { return data_; }

  // Copies the vectors back to `host`. `before`: the tensor's bytes as they were.
  void Return(void* host, std::vector<char> before) const {
    std::vector<char> after(bytes_);
    Copy(after.data(), data_, bytes_);
    const auto vector = static_cast<size_t>(job_.head_dim * element_bytes_);
    for (int64_t token = 0; token < job_.tokens; ++token) {
      for (int64_t head = 0; head < job_.heads; ++head) {
        const auto offset = (token * strides_.token + head * strides_.head) * element_bytes_;
        std::memcpy(static_cast<char*>(host) + offset, after.data() + offset, vector);
        std::memcpy(before.data() + offset, after.data() + offset, vector);
      }
    }
    ROPE_CHECK(before == after);  // what lies between the vectors
  }

  std::vector<char> HostBytes() const {
    const char* const begin = static_cast<const char*>(host_);
    return {begin, begin + bytes_};
  }

 private:
  const RotateJob& job_;
  const void* host_;
  const Strides strides_;
  const int64_t element_bytes_;
  size_t bytes_ = 0;
  kernels::CudaMemory memory_;
  char* data_ = nullptr;
};

class CudaDeviceBackend final : public kernels::Backend {
 public:
  explicit CudaDeviceBackend(std::unique_ptr<kernels::Backend> backend)
      : backend_(std::move(backend)) {
    ROPE_CHECK(Cuda().cuDevicePrimaryCtxRetain(&context_, 0) == CudaError::kSuccess);
  }

  std::string_view name() const override { return backend_->name(); }
  std::string detail() const override { return backend_->detail(); }

  absl::Status Rotate(absl::Span<const RotateJob> jobs) override {
    ROPE_CHECK(Cuda().cuCtxSetCurrent(context_) == CudaError::kSuccess);
    std::vector<RotateJob> moved_jobs(jobs.begin(), jobs.end());
    std::vector<std::unique_ptr<Moved>> inputs(jobs.size()), outputs(jobs.size());
    for (size_t i = 0; i < jobs.size(); ++i) {
      const RotateJob& job = jobs[i];
      if (job.tokens == 0 || job.heads == 0) continue;
      inputs[i] = std::make_unique<Moved>(job, job.input, job.input_strides,
                                          kernels::ElementBytes(job.dtype));
      if (job.input != job.output) {
        outputs[i] = std::make_unique<Moved>(job, job.output, job.output_strides,
                                             kernels::ElementBytes(job.stored()));
      }
      moved_jobs[i].input = inputs[i]->data();
      moved_jobs[i].output = (outputs[i] != nullptr ? outputs : inputs)[i]->data();
      moved_jobs[i].input_memory = moved_jobs[i].output_memory = kernels::MemoryKind::kDevice;
    }
    ROPE_RETURN_IF_ERROR(backend_->Rotate(moved_jobs));
    for (size_t i = 0; i < jobs.size(); ++i) {
      const Moved* const result = (outputs[i] != nullptr ? outputs : inputs)[i].get();
      if (result != nullptr) result->Return(jobs[i].output, result->HostBytes());
    }
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<kernels::Backend> backend_;
  void* context_ = nullptr;
};

}  // namespace

std::unique_ptr<kernels::Backend> MakeCudaDeviceBackend(const kernels::CudaShapes& shapes) {
  auto backend = kernels::MakeCudaBackend(shapes);
  ROPE_CHECK(backend.ok());
  return std::make_unique<CudaDeviceBackend>(*std::move(backend));
}

}  // namespace rope::testing
