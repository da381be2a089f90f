// The input of the CUDA kernels: CudaJob, one rectangle of (token, head) vectors of a list; and
// CudaRectangle, up to four that share tokens and rows.
//
// This is plain C++17 without a CUDA header: nvcc reads it, and so does the planner.
// Every pointer is an address that the device can read. A row is `pairs` cosines and then `pairs`
// sines, and rows lie one behind the other.
// Ownership:  A view; it owns nothing.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_JOB_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_JOB_H_

#include <cstdint>

namespace rope::kernels {

// The kernels over a list of jobs (cuda_rotate.cuh, cuda_fused_ops.cuh).
enum class CudaKernel : uint32_t {
  kVector,  // 16-byte accesses: every size, stride and address is a multiple of 16 bytes
  kScalar,  // every other plain rotation of elements that are aligned to their size
  kFused,   // fused ops, another arithmetic, or any address: correct, not optimised
};

// What a kernel over a rectangle does (cuda_rectangle.cuh). There is one for each of these, dtype
// and pairing; fp8 only turns.
enum class CudaOps : uint32_t {
  kTurn,      // the plain rotation
  kStepwise,  // the rotation in PairArithmetic::kTurnStepwise
  kFused,     // the rotation with a norm or scales
};

// All fields have 32 or 64 bits, so that every narrower load in the kernels' PTX is one of a
// tensor.
struct CudaJob {
  // --- the rotation (rotate_job.h), set by the caller ---
  const void* input = nullptr;
  void* output = nullptr;       // equal to input with equal strides, or not overlapping it
  const float* rows = nullptr;  // [tokens][2 * pairs]; 16-byte aligned if pairs % 4 == 0
  // Null, or the row that all tokens share, in host memory. `rows` has then that row alone.
  const float* one_row = nullptr;
  int64_t input_token = 0;  // strides in elements
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
  uint32_t output_dtype = 0;  // DType

  // --- the division into threads, set by PlanCuda ---
  double channel_share = 0;   // 1 / head_dim
  double inverse_output = 0;  // 1 / output_scale
  uint32_t copies = 0;        // 1 without fused ops: channels outside the pairs are copied
  // Items along a head: 16-byte vectors; or single pairs and channels; or 1 if the job has a norm.
  uint32_t chunks = 0;
  uint32_t head_groups = 0;  // threads that share the heads of a token: g, g + head_groups, ...
  uint32_t items = 0;        // tokens * head_groups * chunks, one for each thread
  uint32_t first_block = 0;  // of the launch
};

inline constexpr int kCudaTensors = 4;    // of a rectangle, at most
inline constexpr int kCudaRowPairs = 64;  // of a row that travels with the launch, at most
inline constexpr uint32_t kCudaNoBlock = ~uint32_t{0};

// The parameter of a kernel over a rectangle. Its jobs share tokens, rows and geometry. The grid is
// blocks of (chunk, head, token), first the heads of all jobs, then the tokens. Positions lie in
// device memory, as int32 or (wide) int64.
struct CudaRectangle {
  // first_block: in x of the grid; kCudaNoBlock: there is no such job.
  CudaJob jobs[kCudaTensors];
  // The row of token t is number positions[t], or without positions first_row + t * row_step. A
  // number outside the table is its last row, and is counted once for each token.
  const float* rows = nullptr;  // [row_count][2 * pairs]; null: `row` is that of all tokens
  const void* positions = nullptr;
  uint32_t* positions_outside = nullptr;  // the count; null: not counted
  int64_t first_row = 0;
  int64_t row_step = 1;
  int64_t row_count = 0;
  uint32_t wide_positions = 0;
  alignas(16) float row[2 * kCudaRowPairs] = {};
};
static_assert(sizeof(CudaRectangle) <= 4096);  // which kernels have on every device

inline constexpr int64_t kCudaHeadDimMax = int64_t{1} << 30;

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_JOB_H_
