// CudaHostMemory: the host memory that is registered with CUDA. Locking pages takes milliseconds
// and more, so one thread registers and unregisters memory.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_HOST_MEMORY_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_HOST_MEMORY_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/rotate_job.h"
#include "proto/mutex.h"

namespace rope::kernels {

class CudaHostMemory final : public HostMemory {
 public:
  explicit CudaHostMemory(int device);
  ~CudaHostMemory() override;
  CudaHostMemory(const CudaHostMemory&) = delete;
  CudaHostMemory& operator=(const CudaHostMemory&) = delete;

  void Add(char* data, int64_t bytes) override;
  void Remove(char* data, Removed removed) override;
  void Wait() override;

  // Unregisters all memory. Call it before the device is reset: after it, Add and Remove call no
  // function of CUDA.
  void Close();

  // The jobs, with MemoryKind::kPinned for the outputs that are here, token by token without gaps;
  // empty if no memory is registered.
  std::vector<RotateJob> Place(absl::Span<const RotateJob> jobs) const;

 private:
  using Ranges = std::map<char*, int64_t, std::less<>>;  // registered memory and its bytes
  struct Task {
    char* data = nullptr;
    int64_t bytes = 0;
    Removed removed;  // null: register the memory
  };

  // Runs the tasks.
  void Loop();
  bool MayRegister() const;
  void Register(const Task& task);
  void Unregister(const Task& task);
  bool HoldsOutput(const RotateJob& job) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  const int device_;
  mutable proto::Mutex mu_;
  proto::CondVar changed_;  // tasks_, running_ or ended_
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mu_);
  bool running_ ABSL_GUARDED_BY(mu_) = false;  // a task that is no longer in tasks_
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  Ranges ranges_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;  // last: it uses all members above
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_HOST_MEMORY_H_
