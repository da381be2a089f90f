#include "kernels/backend/cuda/cuda_host_memory.h"

#include <cuda_runtime_api.h>

#include <iterator>

namespace rope::kernels {

void CudaHostMemory::Add(char* data, int64_t bytes) {
  const bool registered =
      cudaSetDevice(device_) == cudaSuccess &&
      cudaHostRegister(data, static_cast<size_t>(bytes), cudaHostRegisterDefault) == cudaSuccess;
  static_cast<void>(cudaGetLastError());
  if (!registered) return;
  proto::MutexLock lock(&mu_);
  ranges_[data] = bytes;
}

void CudaHostMemory::Remove(char* data) {
  {
    proto::MutexLock lock(&mu_);
    if (ranges_.erase(data) == 0) return;
  }
  static_cast<void>(cudaHostUnregister(data));
  static_cast<void>(cudaGetLastError());
}

RotateJob CudaHostMemory::Place(const RotateJob& job) const {
  RotateJob placed = job;
  if (!job.OnlyTurns()) return placed;
  if (Holds(job.input, job.input_strides, job)) placed.input_memory = MemoryKind::kDevice;
  if (Holds(job.output, job.output_strides, job)) placed.output_memory = MemoryKind::kDevice;
  return placed;
}

bool CudaHostMemory::Holds(const void* data, const Strides& strides, const RotateJob& job) const {
  if (job.tokens == 0 || job.heads == 0 || strides.token < 0 || strides.head < 0) return false;
  const auto* const begin = static_cast<const char*>(data);
  const int64_t last = (job.tokens - 1) * strides.token + (job.heads - 1) * strides.head;
  const char* const end = begin + (last + job.head_dim) * ElementBytes(job.dtype);
  proto::MutexLock lock(&mu_);
  const auto after = ranges_.upper_bound(begin);
  if (after == ranges_.begin()) return false;
  const auto& [range, bytes] = *std::prev(after);
  return end <= range + bytes;
}

}  // namespace rope::kernels
