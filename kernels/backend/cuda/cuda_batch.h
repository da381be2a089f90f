// A batch cut into parts that fit the lane of the cuda backend, and the places in the lane.
//
// The lane's memory, the same on both sides; the first part is copied to the device, the second
// one back:
//   [inputs, rows, floats | CudaJobs]   kCudaUploadBytes
//   [results]                           kCudaResultBytes
// Rows: one behind the other, those of each token, or one row that all tokens share. Floats: token
// scales, then the norm's weights.
//
// Threading:  Pure functions.
// Ownership:  Views of the caller's jobs.
// Errors:     CutCudaBatch: kNotBuilt (backend.h), a token does not fit the lane.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_BATCH_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_BATCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend/rotate_job.h"

namespace rope::kernels {

// One part takes 32 MiB of tensors, the server's largest batch, with their results in the same
// dtype and 13 MiB of rows.
inline constexpr int64_t kCudaUploadBytes = 46 << 20;
inline constexpr int64_t kCudaResultBytes = 34 << 20;
inline constexpr int64_t kCudaLaneBytes = kCudaUploadBytes + kCudaResultBytes;

// Some tokens of a job, with all of their heads. Places are offsets in the lane; -1: none.
struct CudaPiece {
  const RotateJob* job = nullptr;
  int64_t token = 0;
  int64_t tokens = 0;
  int64_t input = 0;
  int64_t rows = -1;
  int64_t token_scales = -1;
  int64_t norm_weight = -1;
  int64_t output = 0;
  bool one_row = false;  // all tokens share a row

  const char* input_data() const;  // of the first vector, in the caller's memory
  char* output_data() const;
  absl::Span<const RowRef> row_refs() const;  // the rows that are copied to the lane
};

// What is copied, launched and copied back together.
struct CudaPart {
  std::vector<CudaPiece> pieces;
  int64_t upload_end = 0;  // of what precedes the CudaJobs
  int64_t results_end = kCudaUploadBytes;

  // Where the CudaJobs begin. They fit, one for each piece.
  int64_t jobs() const;
};

// The strides of a tensor in the lane: token by token, without gaps.
Strides CudaLaneStrides(const RotateJob& job);

// Jobs without vectors are left out.
absl::StatusOr<std::vector<CudaPart>> CutCudaBatch(absl::Span<const RotateJob> jobs);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_BATCH_H_
