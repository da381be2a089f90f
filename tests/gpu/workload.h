// Workload: q and k in device memory, ready to rotate, and the copy to compare with.
//
// A workload holds several sets of tensors and uses the next set in every call, so that a
// measurement covers device memory and not its cache. Tensors hold random numbers.
//
// Threading:  Confined to one thread.
// Ownership:  Owns its memory; graphs that were captured from it must not outlive it.
// Errors:     As device.h.
#ifndef ROPE_TESTS_GPU_WORKLOAD_H_
#define ROPE_TESTS_GPU_WORKLOAD_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend/cuda/cuda_plan.h"
#include "kernels/backend/cuda/device_executor.h"
#include "kernels/dtype/dtype.h"
#include "tests/gpu/device.h"

namespace rope::bench {

inline constexpr int64_t kQueryHeads = 32;
inline constexpr int64_t kKeyHeads = 8;
inline constexpr int64_t kHeadDim = 128;

struct Case {
  std::vector<int64_t> requests;  // tokens of each
  kernels::DType dtype = kernels::DType::kBFloat16;
  kernels::Pairing pairing = kernels::Pairing::kHalf;
  bool in_place = false;
  bool lists = false;  // never a kernel for rectangles (cuda_plan.h)
  // As a program calls it (device_executor.h), with one request: by a row for all tokens where
  // `positions` is 1, by counting up where they do not repeat, else by positions on the device.
  bool calls = false;
  bool launch_each = false;  // a launch for each request, and not one for all
  int64_t positions = 4096;  // positions repeat after this number
  int64_t query_heads = kQueryHeads;
  int64_t pairs = kHeadDim / 2;
  bool norm = false;  // an RMS norm before the rotation, which Verify does not check, nor fp8
};

// Fills host or device memory with random numbers between -1 and 1.
void FillRandomly(void* memory, int64_t bytes, kernels::DType dtype);

class Workload {
 public:
  // REQUIRES: BytesNeeded(wanted) bytes of free device memory.
  explicit Workload(const Case& wanted);

  static int64_t BytesNeeded(const Case& wanted);

  // Bytes of q and k of all requests: what a rotation reads, and what it writes.
  int64_t tensor_bytes() const { return tensor_bytes_; }
  int sets() const { return static_cast<int>(sets_.size()); }
  int64_t launches() const { return static_cast<int64_t>(sets_[0].plans.size()); }

  // Enqueues one rotation of every request, of the next set. The first makes tables resident.
  void Rotate(cudaStream_t stream);
  // Enqueues one copy of as many bytes, device to device: CUDA's, and yardsticks.h's.
  void Copy(cudaStream_t stream);
  void CopyByKernel(cudaStream_t stream);
  // Rotates once and compares every element with the exact rotation. Returns what is wrong.
  std::string Verify();
  // Compares bit by bit what both last verified, of equal cases. Returns what is wrong.
  std::string CompareWith(const Workload& other) const;

 private:
  struct Set {
    DeviceBuffer input;
    DeviceBuffer output;  // empty in place
    std::vector<std::vector<kernels::CudaJob>> batches;
    std::vector<kernels::CudaPlan> plans;  // one for each batch
    std::vector<DeviceBuffer> device_jobs;
    std::vector<kernels::DeviceJob> calls;
  };
  // q or k of one request.
  struct Part {
    int64_t offset;  // in bytes, of the set
    int64_t tokens;
    int64_t heads;
  };

  std::vector<Part> Parts() const;
  // Whether each launch is a rectangle. Else jobs end where positions repeat.
  bool HasRectangles() const;
  Set MakeSet() const;
  void PlanSet(Set& set) const;
  kernels::DeviceJob MakeCall(const kernels::CudaJob& job, size_t tensor) const;
  // Where the next copy goes from and to.
  std::pair<const uint8_t*, uint8_t*> NextCopy();

  Case case_;
  int64_t tensor_bytes_;
  std::vector<float> table_;
  DeviceBuffer device_table_;
  DeviceBuffer device_positions_;  // int32, of the longest request
  std::vector<Set> sets_;
  int next_ = 0;
};

}  // namespace rope::bench

#endif  // ROPE_TESTS_GPU_WORKLOAD_H_
