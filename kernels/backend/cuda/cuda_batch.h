// A batch cut into chunks, each of which one lane can take: which part of which job, and where in
// the lane it lies.
//
// A lane's memory, the same on both sides:
//   [staged slots | row addresses | floats | CudaJobs | direct slots]
// Staged slots pass through pinned memory: one copy to the device takes everything before the
// direct slots. Floats: each piece's token scales, then its norm's weights. A slot holds input and
// output, one over the other, or where their dtypes differ one behind the other.
// Direct slots are copied between the caller's memory and the device. Tensors that lie in this
// device's memory need no slot.
//
// Threading:  Pure functions.
// Ownership:  Views of the caller's jobs.
// Errors:     None.
// Limits:     A chunk takes at most kCudaLaneBytes, or one (token, head) vector that is larger.
#ifndef ROPE_KERNELS_BACKEND_CUDA_CUDA_BATCH_H_
#define ROPE_KERNELS_BACKEND_CUDA_CUDA_BATCH_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/backend/rotate_job.h"

namespace rope::kernels {

// Whose memory a tensor lies in.
enum class CudaMemory {
  kHost,       // pageable: copied by threads, through pinned memory
  kPinned,     // host memory that the device copies from and to
  kDevice,     // this device's: rotated where it lies
  kElsewhere,  // another device's: only CUDA may copy it
};

struct CudaPlacedJob {
  const RotateJob* job = nullptr;
  CudaMemory input = CudaMemory::kHost;
  CudaMemory output = CudaMemory::kHost;
};

// How a tensor and its slot meet.
enum class CudaRoute { kNone, kStaged, kDirect };

// A rectangle of a job.
struct CudaPiece {
  const RotateJob* job = nullptr;
  CudaRoute input = CudaRoute::kNone;
  CudaRoute output = CudaRoute::kNone;
  int64_t token = 0;
  int64_t tokens = 0;
  int64_t head = 0;
  int64_t heads = 0;
  int64_t slot = -1;         // the input's offset in the lane; -1: none
  int64_t output_slot = -1;  // the output's
  Strides slot_strides;      // in the order of the input, without gaps

  const char* input_data() const;  // of the piece's first vector, in the caller's memory
  char* output_data() const;
  int64_t elements() const { return tokens * heads * job->head_dim; }
  int64_t bytes() const { return elements() * ElementBytes(job->dtype); }  // of the input
  int64_t output_bytes() const { return elements() * ElementBytes(job->stored()); }
  int64_t floats() const;
  bool HasSlot() const { return input != CudaRoute::kNone || output != CudaRoute::kNone; }
  // Whether anything of it passes through pinned memory.
  bool IsStaged() const { return input == CudaRoute::kStaged || output == CudaRoute::kStaged; }
};

struct CudaChunk {
  std::vector<CudaPiece> pieces;
  int64_t rows_offset = 0;  // where the staged slots end
  int64_t rows = 0;         // addresses; pieces of the same tokens and rows share theirs
  int64_t floats_offset = 0;
  int64_t jobs_offset = 0;
  int64_t direct_offset = 0;  // what is copied to the device first ends here
  int64_t bytes = 0;          // of the lane
};

// Batches that stage no more than this are one chunk: a copy to the device, a launch and a copy
// back. On the fastest buses such a copy takes as long as it takes to start a few.
inline constexpr int64_t kCudaSmallBytes = 512 << 10;
// Pinned tensors are copied directly from this size on; smaller ones travel with the rest.
inline constexpr int64_t kCudaDirectBytes = 64 << 10;

// `workers`: threads that will share the chunks. Jobs without vectors are left out.
std::vector<CudaChunk> CutCudaBatch(absl::Span<const CudaPlacedJob> jobs, int workers);

// Whether the next piece reads the same row addresses as this one.
bool SharesRows(const CudaPiece& piece, const CudaPiece& next);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_BACKEND_CUDA_CUDA_BATCH_H_
