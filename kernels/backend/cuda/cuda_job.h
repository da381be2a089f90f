// CudaJob: the input of the CUDA kernels for one rectangle of (token, head) vectors.
//
// This is plain C++17 without a CUDA header: nvcc reads it, and so does the planner.
// Every pointer is an address that the device can read. A row is `pairs` cosines and then `pairs`
// sines, and the rows of a job's tokens lie one behind the other.
// Ownership:  A view; it owns nothing.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_JOB_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_JOB_H_

#include <cstddef>
#include <cstdint>

namespace rope::kernels {

// The kernels of cuda_rotate.cuh.
enum class CudaKernel : uint32_t {
  kVector,  // 16-byte accesses: every size, stride and address is a multiple of 16 bytes
  kScalar,  // every other plain rotation of elements that are aligned to their size
  kFused,   // fused ops, another arithmetic, or any address: correct, not optimised
};

inline constexpr uint32_t kCudaInputDType = ~uint32_t{0};  // output_dtype is the input's dtype

// All fields have 32 or 64 bits, so that every narrower load in the kernels' PTX is one of a
// tensor.
struct CudaJob {
  // --- the rotation (rotate_job.h), set by the caller ---
  const void* input = nullptr;
  void* output = nullptr;       // equal to input with equal strides, or not overlapping it
  const float* rows = nullptr;  // [tokens][2 * pairs]; 16-byte aligned if pairs % 4 == 0
  int64_t input_token = 0;      // strides in elements
  int64_t input_head = 0;
  int64_t output_token = 0;
  int64_t output_head = 0;
  uint32_t tokens = 0;
  uint32_t heads = 0;
  uint32_t head_dim = 0;  // at most kCudaHeadDimMax
  uint32_t pairs = 0;
  uint32_t offset = 0;
  uint32_t partner = 0;
  uint32_t dtype = 0;    // DType
  uint32_t pairing = 0;  // Pairing
  uint32_t conjugate = 0;
  uint32_t arithmetic = 0;  // PairArithmetic

  // --- fused ops, set by the caller ---
  const float* norm_weight = nullptr;   // [head_dim]; null: 1
  const float* token_scales = nullptr;  // [tokens]; null: 1
  uint32_t norm = 0;                    // 1 if the job has a norm
  float eps = 0;
  float scale = 1;
  float output_scale = 1;
  uint32_t output_dtype = kCudaInputDType;  // DType

  // --- the division into threads, set by PlanCuda ---
  double channel_share = 0;   // 1 / head_dim
  double inverse_output = 0;  // 1 / output_scale
  uint32_t copies = 0;        // 1 without fused ops: channels outside the pairs are copied
  // Items along a head: 16-byte vectors; or single pairs and channels; or 1 if the job has a norm.
  uint32_t chunks = 0;
  uint32_t head_groups = 0;  // threads that share the heads of a token: g, g + head_groups, ...
  uint32_t items = 0;        // tokens * head_groups * chunks, one for each thread
  // Jobs of a group take turns, so that q and k of a token are processed close together. A tile of
  // the group has some blocks of each job. A job alone is a group of one tile.
  uint32_t first_block = 0;   // index of the group's first block in the launch
  uint32_t group_blocks = 0;  // of a tile
  uint32_t tile_first = 0;    // of these, the job's first
  uint32_t tile_blocks = 0;   // and how many are the job's
};

// The jobs of a small launch, passed by value: a kernel then reads them from constant memory, and
// they need no copy to the device.
inline constexpr uint32_t kCudaJobsByValue = 16;
struct CudaJobs {
  CudaJob jobs[kCudaJobsByValue];
};
static_assert(sizeof(CudaJobs) <= 4000);  // of the 4 KiB that kernels have on every device

inline constexpr int64_t kCudaHeadDimMax = int64_t{1} << 30;

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_JOB_H_
