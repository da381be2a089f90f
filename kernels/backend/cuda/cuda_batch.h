// A batch cut into chunks, each of which one lane can take: which part of which job, and where in
// the lane it lies.
//
// A lane's memory, the same on both sides:
//   [slots of results | slots of inputs | rows | floats | CudaJobs]
// All but the first part is copied to the device. A result of the input's dtype takes the place of
// the input. Tensors that the device reaches itself need no slot. Rows: those of tokens that do not
// lie in long runs of the table; the rows of runs are in the page mirror. Floats: each piece's
// token scales, then its norm's weights.
//
// Threading:  Pure functions.
// Ownership:  Views of the caller's jobs.
// Errors:     CutCudaBatch: kNotBuilt (backend.h), the vectors of a token do not fit a lane.
// Limits:     A chunk takes at most kCudaLaneBytes, and at most `table_bytes` of pages.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_BATCH_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_BATCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend/rotate_job.h"

namespace rope::kernels {

// Tokens whose rows lie in the same way.
struct CudaTokens {
  int64_t token = 0;
  int64_t tokens = 0;
  // True: the rows are consecutive in cached pages; the kernel reads them in the page mirror.
  // False: the rows are copied with the lane.
  bool in_pages = false;
};

// Some tokens of a job.
struct CudaPiece {
  const RotateJob* job = nullptr;
  int64_t token = 0;  // the piece has all heads of these tokens
  int64_t tokens = 0;
  bool in_pages = false;     // CudaTokens::in_pages
  int64_t slot = -1;         // the input's offset in the lane; -1: none
  int64_t output_slot = -1;  // the output's, which is the input's or a slot of results
  int64_t rows = -1;         // the offset of its first row in the lane, unless in_pages
  Strides slot_strides;      // without gaps: in the order of a pinned output, or of the input

  const char* input_data() const;  // of the piece's first vector, in the caller's memory
  char* output_data() const;
  int64_t elements() const { return tokens * job->heads * job->head_dim; }
  int64_t bytes() const { return elements() * ElementBytes(job->dtype); }  // of the input
  int64_t output_bytes() const { return elements() * ElementBytes(job->stored()); }
  int64_t floats() const;
  const RowRef& row(int64_t index) const {  // of token number `index` of the piece
    return job->rows[static_cast<size_t>(token + index)];
  }
};

struct CudaChunk {
  std::vector<CudaPiece> pieces;
  int64_t upload_begin = 0;
  int64_t floats_offset = 0;
  int64_t floats_end = 0;
  int64_t jobs_offset = 0;
};

// Batches that stage no more than this are one chunk: a copy to the device, a launch and a copy
// back. On the fastest buses such a copy takes as long as it takes to start a few.
inline constexpr int64_t kCudaSmallBytes = 512 << 10;
// The fewest tokens for which a run of the table becomes a separate job.
inline constexpr int64_t kCudaRunTokens = 32;

// Cuts the tokens of a job. Pages that the mirror does not take count as any rows.
std::vector<CudaTokens> CutCudaTokens(const RotateJob& job);

// `workers`: threads that will share the chunks. Jobs without vectors are left out.
absl::StatusOr<std::vector<CudaChunk>> CutCudaBatch(absl::Span<const RotateJob> jobs, int workers,
                                                    int64_t table_bytes);

// Whether the tokens of the output lie one after the other, without gaps.
bool HasDenseOutput(const RotateJob& job);

// Whether the next piece reads the same rows of the lane as this one.
bool SharesRows(const CudaPiece& piece, const CudaPiece& next);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_BATCH_H_
