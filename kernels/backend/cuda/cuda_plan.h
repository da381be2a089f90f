// PlanCuda: from jobs in device memory to launches.
//
// Jobs that are one rectangle, such as q and k of a request, are one launch of the kernel for their
// operation, dtype and pairing (CudaRectangle): up to four tensors with the same tokens, rows and
// geometry, whose sizes, strides and addresses are multiples of the kernel's 16-byte accesses (fp8:
// 8). Others are lists:
//
// Jobs of every dtype, pairing, geometry and length share one launch of the vector kernel.
// Those that its 16-byte accesses cannot serve (odd head sizes, odd strides) share a launch of the
// scalar kernel. Those of other arithmetic, with fused ops, or whose elements are not aligned to
// their size share a launch of the fused kernel. Lists take no fp8 inputs. Two shapes, chosen by
// the work of a launch:
//   head-parallel: few tokens; a thread turns one piece of one head.
//   head-loop: many tokens; a thread keeps the cos and sin of its pairs in registers while it
//              walks over up to kCudaHeadsPerThread heads.
//
// Usage, with everything but the planner's own fields set:
//   const CudaPlan plan = PlanCuda(jobs);
//   (copy plan.jobs to the device; they are empty if there is a rectangle)
//   device.Launch(plan, device_jobs, stream);  // cuda_device.h
//
// Threading:  Pure function.
// Ownership:  The plan holds copies of the jobs, with the addresses that they came with.
// Errors:     None. A malformed job is our bug (ROPE_CHECK).
// Limits:     kCudaItemsMax items of a job of a list, because kernels count them in 32 bits. A job
//             of no more elements has no more items.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_PLAN_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/backend/cuda/cuda_job.h"
#include "kernels/dtype/dtype.h"

namespace rope::kernels {

struct RotateJob;  // rotate_job.h

struct CudaLaunch {
  CudaKernel kernel = CudaKernel::kVector;
  uint32_t first_job = 0;  // in CudaPlan::jobs
  uint32_t jobs = 0;
  uint32_t blocks = 0;
  uint32_t threads = 0;  // of a block
};

// The kernel of a rectangle: its place in the list of all of them.
uint32_t CudaRectangleKernel(CudaOps ops, DType dtype, Pairing pairing);
inline constexpr uint32_t kCudaRectangleKernels = 3 * 5 * 2;
// "RectangleTurnBFloat16Half"; empty: there is no such kernel.
std::string CudaRectangleName(uint32_t kernel);

struct CudaGrid {
  uint32_t x = 1;
  uint32_t y = 1;
  uint32_t z = 1;
};

struct CudaRectangleLaunch {
  CudaRectangle work;
  uint32_t kernel = 0;
  CudaGrid blocks;
  CudaGrid threads;
};

struct CudaPlan {
  std::optional<CudaRectangleLaunch> rectangle;  // unset, or all there is to launch
  std::vector<CudaJob> jobs;                     // those of a launch are neighbours
  std::vector<CudaLaunch> launches;              // at most one of each kernel
};

// Where one shape ends and the next begins. An item is one piece of one head.
struct CudaShapes {
  // Head-parallel, with small blocks that spread over more processors: launches of fewer items.
  double items_few = 1 << 18;
  // Head-loop: a thread takes 2 heads, 4 from four times this many items on, and so on.
  double items_per_head = 1 << 19;
  bool rectangles = true;  // false: every job is in a list
};
inline constexpr uint32_t kCudaThreads = 128;  // of a block; for rectangles the most
inline constexpr uint32_t kCudaThreadsFew = 64;
inline constexpr uint32_t kCudaHeadsPerThread = 8;  // at most
inline constexpr int64_t kCudaItemsMax = int64_t{1} << 30;

// The CudaJob of `job` without rows, weights and scales of tokens, which the caller sets.
CudaJob CudaJobOf(const RotateJob& job);

CudaPlan PlanCuda(const std::vector<CudaJob>& jobs, const CudaShapes& shapes = {});

// The launch of jobs that are one rectangle; unset: they are none. REQUIRES: each has something to
// do.
std::optional<CudaRectangleLaunch> PlanCudaRectangle(std::vector<CudaJob> jobs);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_PLAN_H_
