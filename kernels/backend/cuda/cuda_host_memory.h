// CudaHostMemory: the host memory that is registered with CUDA.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_HOST_MEMORY_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_HOST_MEMORY_H_

#include <cstdint>
#include <map>

#include "absl/base/thread_annotations.h"
#include "kernels/backend/host_memory.h"
#include "kernels/backend/rotate_job.h"
#include "proto/mutex.h"

namespace rope::kernels {

class CudaHostMemory final : public HostMemory {
 public:
  explicit CudaHostMemory(int device) : device_(device) {}

  void Add(char* data, int64_t bytes) override;
  void Remove(char* data) override;
  // The job, with MemoryKind::kDevice for the tensors that are here. Only plain rotations, whose
  // kernels access whole vectors, gain from that.
  RotateJob Place(const RotateJob& job) const;

 private:
  bool Holds(const void* data, const Strides& strides, const RotateJob& job) const;

  const int device_;
  mutable proto::Mutex mu_;
  std::map<const char*, int64_t> ranges_ ABSL_GUARDED_BY(mu_);
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_HOST_MEMORY_H_
