#include "kernels/backend/cuda/cuda_batch.h"

#include <algorithm>

#include "kernels/backend/cuda/cuda_job.h"
#include "kernels/backend/cuda/cuda_lanes.h"

namespace rope::kernels {
namespace {

constexpr int64_t kSlotAlignment = 16;  // what the vector kernel wants
constexpr int64_t kRowBytes = sizeof(const float*);
constexpr int64_t kFloatBytes = sizeof(float);
// So many single elements are certainly counted in 32 bits: PlanCuda never splits a piece.
constexpr int64_t kElementsMax = int64_t{1} << 30;

int64_t RoundUp(int64_t bytes) {
  return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

// What a (token, head) vector takes in a slot, without its alignment.
int64_t SlotBytes(const RotateJob& job) {
  const int64_t input = job.head_dim * ElementBytes(job.dtype);
  return job.stored() == job.dtype ? input : input + job.head_dim * ElementBytes(job.stored());
}

// What a token takes beside its vectors, and what a piece takes beside its tokens.
int64_t TokenBytes(const RotateJob& job) {
  return kRowBytes + (job.token_scales.empty() ? 0 : kFloatBytes);
}
int64_t WeightBytes(const RotateJob& job) {
  return job.norm && job.norm->weight != nullptr ? job.head_dim * kFloatBytes : 0;
}

CudaRoute RouteOf(CudaMemory memory, int64_t bytes) {
  switch (memory) {
    case CudaMemory::kDevice:
      return CudaRoute::kNone;
    case CudaMemory::kElsewhere:
      return CudaRoute::kDirect;
    case CudaMemory::kPinned:
      return bytes >= kCudaDirectBytes ? CudaRoute::kDirect : CudaRoute::kStaged;
    case CudaMemory::kHost:
      break;
  }
  return CudaRoute::kStaged;
}

// Fills chunks up to `target` bytes.
class Cutter {
 public:
  explicit Cutter(int64_t target) : target_(target) {}

  // By tokens, and tokens that are too large by heads.
  void Add(const CudaPlacedJob& placed) {
    const RotateJob& job = *placed.job;
    const bool has_slot =
        placed.input != CudaMemory::kDevice || placed.output != CudaMemory::kDevice;
    const int64_t slot_bytes = has_slot ? SlotBytes(job) : 0;
    int64_t token = 0;
    while (token < job.tokens) {
      const int64_t fit = std::min(TokensThatFit(job, job.heads * slot_bytes), job.tokens - token);
      if (fit > 0) {
        Append(placed, {.token = token, .tokens = fit, .head = 0, .heads = job.heads});
        token += fit;
      } else if (!chunk_.pieces.empty()) {
        Close();
      } else {
        AddHeads(placed, token, slot_bytes);
        ++token;
      }
    }
  }

  std::vector<CudaChunk> Finish() {
    Close();
    return std::move(chunks_);
  }

 private:
  struct Range {
    int64_t token, tokens, head, heads;
  };

  int64_t TokensThatFit(const RotateJob& job, int64_t slot_bytes_per_token) const {
    // The job, and what aligning its slots and the end of the floats may take.
    const int64_t fixed =
        static_cast<int64_t>(sizeof(CudaJob)) + 3 * kSlotAlignment + WeightBytes(job);
    const int64_t elements = job.heads * std::max<int64_t>(job.head_dim, 1);
    return std::min((target_ - used_ - fixed) / (slot_bytes_per_token + TokenBytes(job)),
                    kElementsMax / elements);
  }

  void AddHeads(const CudaPlacedJob& placed, int64_t token, int64_t slot_bytes) {
    const RotateJob& job = *placed.job;
    const int64_t bytes_most = slot_bytes == 0 ? job.heads : target_ / 2 / slot_bytes;
    const int64_t most = std::max<int64_t>(
        std::min(bytes_most, kElementsMax / std::max<int64_t>(job.head_dim, 1)), 1);
    for (int64_t head = 0; head < job.heads; head += most) {
      Close();
      Append(
          placed,
          {.token = token, .tokens = 1, .head = head, .heads = std::min(most, job.heads - head)});
    }
  }

  void Append(const CudaPlacedJob& placed, const Range& range) {
    const RotateJob& job = *placed.job;
    CudaPiece piece;
    piece.job = &job;
    piece.token = range.token;
    piece.tokens = range.tokens;
    piece.head = range.head;
    piece.heads = range.heads;
    piece.input = RouteOf(placed.input, piece.bytes());
    piece.output = RouteOf(placed.output, piece.bytes());
    const bool head_major = job.input_strides.token < job.input_strides.head;
    piece.slot_strides = head_major
                             ? Strides{.token = job.head_dim, .head = range.tokens * job.head_dim}
                             : Strides{.token = range.heads * job.head_dim, .head = job.head_dim};
    used_ +=
        static_cast<int64_t>(sizeof(CudaJob)) + range.tokens * TokenBytes(job) + WeightBytes(job);
    if (piece.HasSlot()) {
      used_ += RoundUp(piece.bytes());
      if (job.stored() != job.dtype) used_ += RoundUp(piece.output_bytes());
    }
    chunk_.pieces.push_back(piece);
  }

  void Close() {
    if (chunk_.pieces.empty()) return;
    Place(chunk_);
    chunks_.push_back(std::move(chunk_));
    chunk_ = CudaChunk();
    used_ = 0;
  }

  // The layout of cuda_batch.h.
  static void Place(CudaChunk& chunk) {
    int64_t end = 0;
    const auto place = [&end](CudaPiece& piece) {
      piece.slot = piece.output_slot = end;
      end = RoundUp(end + piece.bytes());
      if (piece.job->stored() == piece.job->dtype) return;
      piece.output_slot = end;
      end = RoundUp(end + piece.output_bytes());
    };
    int64_t floats = 0;
    const CudaPiece* before = nullptr;
    for (CudaPiece& piece : chunk.pieces) {
      if (piece.IsStaged()) place(piece);
      floats += piece.floats();
      if (before == nullptr || !SharesRows(*before, piece)) chunk.rows += piece.tokens;
      before = &piece;
    }
    chunk.rows_offset = end;
    chunk.floats_offset = end + chunk.rows * kRowBytes;
    chunk.jobs_offset = RoundUp(chunk.floats_offset + floats * kFloatBytes);
    end = chunk.jobs_offset +
          static_cast<int64_t>(chunk.pieces.size()) * static_cast<int64_t>(sizeof(CudaJob));
    chunk.direct_offset = end;
    end = RoundUp(end);
    for (CudaPiece& piece : chunk.pieces) {
      if (piece.HasSlot() && !piece.IsStaged()) place(piece);
    }
    chunk.bytes = end;
  }

  const int64_t target_;
  std::vector<CudaChunk> chunks_;
  CudaChunk chunk_;
  int64_t used_ = 0;
};

}  // namespace

const char* CudaPiece::input_data() const {
  return static_cast<const char*>(job->input) +
         (token * job->input_strides.token + head * job->input_strides.head) *
             ElementBytes(job->dtype);
}

char* CudaPiece::output_data() const {
  return static_cast<char*>(job->output) +
         (token * job->output_strides.token + head * job->output_strides.head) *
             ElementBytes(job->stored());
}

int64_t CudaPiece::floats() const {
  return (job->token_scales.empty() ? 0 : tokens) + WeightBytes(*job) / kFloatBytes;
}

bool SharesRows(const CudaPiece& piece, const CudaPiece& next) {
  return piece.job->rows.data() == next.job->rows.data() &&
         piece.job->geometry.pairs == next.job->geometry.pairs && piece.token == next.token &&
         piece.tokens == next.tokens;
}

std::vector<CudaChunk> CutCudaBatch(absl::Span<const CudaPlacedJob> jobs, int workers) {
  int64_t staged = 0;
  for (const CudaPlacedJob& placed : jobs) {
    const bool has_slot =
        placed.input != CudaMemory::kDevice || placed.output != CudaMemory::kDevice;
    if (has_slot) staged += placed.job->tokens * placed.job->heads * SlotBytes(*placed.job);
  }
  // Two chunks for each worker, so that one is copied while another is rotated.
  const int64_t target = staged <= kCudaSmallBytes
                             ? kCudaLaneBytes
                             : std::clamp(staged / (2 * workers), kCudaSmallBytes, kCudaLaneBytes);
  Cutter cutter(target);
  for (const CudaPlacedJob& placed : jobs) {
    if (placed.job->tokens > 0 && placed.job->heads > 0 && placed.job->head_dim > 0) {
      cutter.Add(placed);
    }
  }
  return cutter.Finish();
}

}  // namespace rope::kernels
