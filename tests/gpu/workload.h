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
#include <vector>

#include "kernels/backend/cuda/cuda_plan.h"
#include "kernels/dtype/dtype.h"
#include "kernels/dtype/pairing.h"
#include "kernels/tables/table_page.h"
#include "tests/gpu/device.h"

namespace rope::bench {

inline constexpr int64_t kQueryHeads = 32;
inline constexpr int64_t kKeyHeads = 8;
inline constexpr int64_t kHeadDim = 128;

// The shape of a launch (cuda_plan.h): the planner's choice, or a forced one.
enum class Shape { kPlanned, kHeadParallel, kTokenLoop };

struct Case {
  std::vector<int64_t> requests;  // tokens of each
  kernels::DType dtype = kernels::DType::kBFloat16;
  kernels::Pairing pairing = kernels::Pairing::kHalf;
  bool in_place = false;
  Shape shape = Shape::kPlanned;
  bool launch_each = false;  // a launch for each request, and not one for all
  int64_t positions = 4096;  // positions repeat after this number
};

class Workload {
 public:
  // REQUIRES: BytesNeeded(wanted) bytes of free device memory.
  explicit Workload(const Case& wanted);

  static int64_t BytesNeeded(const Case& wanted);

  // Bytes of q and k of all requests: what a rotation reads, and what it writes.
  int64_t tensor_bytes() const { return tensor_bytes_; }
  int sets() const { return static_cast<int>(sets_.size()); }
  int64_t launches() const { return static_cast<int64_t>(sets_[0].plans.size()); }

  // Enqueues one rotation of every request, of the next set.
  void Rotate(cudaStream_t stream);
  // Enqueues one copy of as many bytes, device to device.
  void Copy(cudaStream_t stream);
  // Rotates once and compares tokens of the first request with the exact rotation. A wrong result
  // exits the program, because its speed would mean nothing.
  void Verify();

 private:
  struct Set {
    DeviceBuffer input;
    DeviceBuffer output;  // empty in place
    std::vector<kernels::CudaPlan> plans;
    std::vector<DeviceBuffer> device_jobs;  // one for each plan
  };

  // One token of q or k, before and after the rotation.
  struct Sample {
    int64_t token;
    int64_t heads;
    int64_t offset;  // in bytes, of the set
    std::vector<uint8_t> before;
    std::vector<uint8_t> after;
    int64_t bytes() const { return static_cast<int64_t>(before.size()); }
  };

  Set MakeSet(const DeviceBuffer& pattern) const;
  Sample MakeSample(int64_t first_vector, int64_t heads, int64_t token) const;
  void VerifySample(const Sample& sample) const;

  Case case_;
  int64_t tensor_bytes_;
  kernels::TablePage table_;
  DeviceBuffer device_table_;
  DeviceBuffer device_rows_;  // an address for each token of the longest request
  std::vector<Set> sets_;
  int next_ = 0;
};

}  // namespace rope::bench

#endif  // ROPE_TESTS_GPU_WORKLOAD_H_
