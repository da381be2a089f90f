#include "kernels/backend/cuda/cuda_host_memory.h"

#include <cuda_runtime_api.h>

#include <iterator>
#include <utility>

#include "kernels/backend/cuda/cuda_batch.h"

namespace rope::kernels {
CudaHostMemory::CudaHostMemory(int device) : device_(device), thread_([this] { Loop(); }) {}

CudaHostMemory::~CudaHostMemory() {
  {
    proto::MutexLock lock(&mu_);
    ended_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void CudaHostMemory::Add(char* data, int64_t bytes) {
  proto::MutexLock lock(&mu_);
  tasks_.push_back({data, bytes, nullptr});
  changed_.SignalAll();
}

// A removal goes to the front of the queue, because its owner waits for the memory. A registration
// of the same memory that has not begun is dropped, so no page is locked for nothing.
void CudaHostMemory::Remove(char* data, Removed removed) {
  proto::MutexLock lock(&mu_);
  std::erase_if(tasks_, [data](const Task& task) { return task.data == data; });
  tasks_.push_front({data, 0, std::move(removed)});
  changed_.SignalAll();
}

void CudaHostMemory::Wait() {
  proto::MutexLock lock(&mu_);
  while (running_ || !tasks_.empty()) changed_.Wait(&mu_);
}

void CudaHostMemory::Close() {
  Ranges ranges;
  {
    proto::MutexLock lock(&mu_);
    closed_ = true;
    while (running_) changed_.Wait(&mu_);
    ranges.swap(ranges_);
  }
  for (const auto& [data, bytes] : ranges) {
    static_cast<void>(cudaHostUnregister(data));
  }
  static_cast<void>(cudaGetLastError());
}

// No lock is held while a task runs. After `ended_` memory is still removed, because its owner
// waits for that, and none is added.
void CudaHostMemory::Loop() {
  while (true) {
    Task task;
    {
      proto::MutexLock lock(&mu_);
      while (tasks_.empty() && !ended_) changed_.Wait(&mu_);
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
      running_ = true;
    }
    if (task.removed != nullptr) {
      Unregister(task);
      task.removed();
    } else if (MayRegister()) {
      Register(task);
    }
    proto::MutexLock lock(&mu_);
    running_ = false;
    changed_.SignalAll();
  }
}

bool CudaHostMemory::MayRegister() const {
  proto::MutexLock lock(&mu_);
  return !ended_ && !closed_;
}

void CudaHostMemory::Register(const Task& task) {
  const bool registered = cudaSetDevice(device_) == cudaSuccess &&
                          cudaHostRegister(task.data, static_cast<size_t>(task.bytes),
                                           cudaHostRegisterDefault) == cudaSuccess;
  static_cast<void>(cudaGetLastError());
  if (!registered) return;
  proto::MutexLock lock(&mu_);
  ranges_[task.data] = task.bytes;
}

void CudaHostMemory::Unregister(const Task& task) {
  {
    proto::MutexLock lock(&mu_);
    if (ranges_.erase(task.data) == 0) return;
  }
  static_cast<void>(cudaHostUnregister(task.data));
  static_cast<void>(cudaGetLastError());
}

std::vector<RotateJob> CudaHostMemory::Place(absl::Span<const RotateJob> jobs) const {
  proto::MutexLock lock(&mu_);
  if (ranges_.empty()) return {};
  std::vector<RotateJob> placed(jobs.begin(), jobs.end());
  for (RotateJob& job : placed) {
    if (job.output_memory == MemoryKind::kHost && HoldsOutput(job)) {
      job.output_memory = MemoryKind::kPinned;
    }
  }
  return placed;
}

bool CudaHostMemory::HoldsOutput(const RotateJob& job) const {
  if (!HasDenseOutput(job)) return false;
  const auto* const begin = static_cast<const char*>(job.output);
  const int64_t bytes = job.tokens * job.output_strides.token * ElementBytes(job.stored());
  const auto after = ranges_.upper_bound(begin);
  if (after == ranges_.begin()) return false;
  const auto& [range, range_bytes] = *std::prev(after);
  return begin + bytes <= range + range_bytes;
}

}  // namespace rope::kernels
