#include "kernels/backend/cuda/cuda_batch.h"

#include <algorithm>

#include "kernels/backend/cuda/cuda_job.h"
#include "kernels/backend/cuda/cuda_plan.h"
#include "kernels/error.h"

namespace rope::kernels {
namespace {

constexpr int64_t kAlignment = 16;  // what the vector kernel wants
constexpr int64_t kFloatBytes = sizeof(float);
constexpr int64_t kJobBytes = sizeof(CudaJob);
static_assert(kCudaUploadBytes <= kCudaItemsMax);  // so no piece has more elements

int64_t RoundUp(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Takes the next aligned `bytes` of the lane. Returns where they begin.
int64_t Take(int64_t bytes, int64_t& end) {
  const int64_t begin = RoundUp(end);
  end = begin + bytes;
  return begin;
}

// What a token takes of the lane.
int64_t InputBytes(const RotateJob& job) {
  return job.heads * job.head_dim * ElementBytes(job.dtype);
}
int64_t OutputBytes(const RotateJob& job) {
  return job.heads * job.head_dim * ElementBytes(job.stored());
}
int64_t RowBytes(const RotateJob& job) {
  return 2 * job.geometry.pairs * kFloatBytes;
}
int64_t ScaleBytes(const RotateJob& job) {
  return job.token_scales.empty() ? 0 : kFloatBytes;
}

int64_t WeightBytes(const RotateJob& job) {
  return job.norm && job.norm->weight != nullptr ? job.head_dim * kFloatBytes : 0;
}

// The tokens of the job that fit behind what the part has.
int64_t TokensThatFit(const RotateJob& job, const CudaPart& part) {
  constexpr int64_t kPlaces = 5;  // that are aligned: the members of CudaPiece, and the CudaJobs
  const int64_t upload = kCudaUploadBytes - part.upload_end - kPlaces * kAlignment -
                         WeightBytes(job) - (std::ssize(part.pieces) + 1) * kJobBytes;
  const int64_t results = kCudaLaneBytes - part.results_end - kAlignment;
  if (upload < 0 || results < 0) return 0;
  return std::min(upload / (InputBytes(job) + RowBytes(job) + ScaleBytes(job)),
                  results / OutputBytes(job));
}

// Whether both read the same rows, as q and k do.
bool SharesRows(const CudaPiece& piece, const CudaPiece& next) {
  return piece.row_refs().data() == next.row_refs().data() && piece.tokens == next.tokens &&
         piece.job->geometry.pairs == next.job->geometry.pairs;
}

void Append(const RotateJob& job, int64_t token, int64_t tokens, CudaPart& part) {
  CudaPiece piece = {.job = &job, .token = token, .tokens = tokens};
  piece.one_row = job.SharesRow(token, token + tokens);
  piece.input = Take(tokens * InputBytes(job), part.upload_end);
  if (!part.pieces.empty() && SharesRows(part.pieces.back(), piece)) {
    piece.rows = part.pieces.back().rows;
  } else if (RowBytes(job) > 0) {
    piece.rows = Take(std::ssize(piece.row_refs()) * RowBytes(job), part.upload_end);
  }
  if (ScaleBytes(job) > 0) piece.token_scales = Take(tokens * kFloatBytes, part.upload_end);
  if (WeightBytes(job) > 0) piece.norm_weight = Take(WeightBytes(job), part.upload_end);
  piece.output = Take(tokens * OutputBytes(job), part.results_end);
  part.pieces.push_back(piece);
}

}  // namespace

const char* CudaPiece::input_data() const {
  return static_cast<const char*>(job->input) +
         token * job->input_strides.token * ElementBytes(job->dtype);
}

char* CudaPiece::output_data() const {
  return static_cast<char*>(job->output) +
         token * job->output_strides.token * ElementBytes(job->stored());
}

absl::Span<const RowRef> CudaPiece::row_refs() const {
  if (job->geometry.pairs == 0) return {};
  return job->rows.subspan(static_cast<size_t>(token), one_row ? 1 : static_cast<size_t>(tokens));
}

int64_t CudaPart::jobs() const {
  return RoundUp(upload_end);
}

Strides CudaLaneStrides(const RotateJob& job) {
  return {.token = job.heads * job.head_dim, .head = job.head_dim};
}

absl::StatusOr<std::vector<CudaPart>> CutCudaBatch(absl::Span<const RotateJob> jobs) {
  std::vector<CudaPart> parts(1);
  for (const RotateJob& job : jobs) {
    if (job.heads == 0 || job.head_dim == 0) continue;
    for (int64_t token = 0; token < job.tokens;) {
      int64_t tokens = std::min(TokensThatFit(job, parts.back()), job.tokens - token);
      if (tokens == 0 && !parts.back().pieces.empty()) {
        parts.emplace_back();
        tokens = std::min(TokensThatFit(job, parts.back()), job.tokens - token);
      }
      if (tokens == 0) {
        return MakeError(Reason::kNotBuilt, "cuda",
                         StrCat("a token of ", job.heads, " heads of ", job.head_dim, " channels"),
                         StrCat("one that fits ", kCudaLaneBytes, " bytes"));
      }
      Append(job, token, tokens, parts.back());
      token += tokens;
    }
  }
  if (parts.back().pieces.empty()) parts.pop_back();
  return parts;
}

}  // namespace rope::kernels
