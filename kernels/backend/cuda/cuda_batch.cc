#include "kernels/backend/cuda/cuda_batch.h"

#include <algorithm>

#include "kernels/backend/cuda/cuda_job.h"
#include "kernels/backend/cuda/cuda_memory.h"
#include "kernels/backend/cuda/cuda_page_mirror.h"
#include "kernels/backend/cuda/cuda_plan.h"
#include "kernels/check.h"
#include "kernels/error.h"
#include "kernels/status_macros.h"
#include "kernels/tables/page_builder.h"

namespace rope::kernels {
namespace {

constexpr int64_t kSlotAlignment = 16;  // what the vector kernel wants
constexpr int64_t kFloatBytes = sizeof(float);
constexpr int64_t kJobBytes = sizeof(CudaJob);
constexpr int64_t kElementsMax = kCudaItemsMax;  // of a piece

int64_t RoundUp(int64_t bytes) {
  return (bytes + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

bool IsInHost(MemoryKind memory) {
  return memory != MemoryKind::kDevice;
}

// Whether the result takes the place of the input in its slot.
bool OverwritesSlot(const RotateJob& job) {
  return IsInHost(job.input_memory) && IsInHost(job.output_memory) && job.stored() == job.dtype;
}

// Whether the result has a slot without the input.
bool HasOutputSlot(const RotateJob& job) {
  return IsInHost(job.output_memory) && !OverwritesSlot(job);
}

// What a (token, head) vector takes in slots, without their alignment.
int64_t SlotBytes(const RotateJob& job) {
  return (IsInHost(job.input_memory) ? job.head_dim * ElementBytes(job.dtype) : 0) +
         (HasOutputSlot(job) ? job.head_dim * ElementBytes(job.stored()) : 0);
}

int64_t RowBytes(const RotateJob& job) {
  return 2 * job.geometry.pairs * kFloatBytes;
}
int64_t WeightBytes(const RotateJob& job) {
  return job.norm && job.norm->weight != nullptr ? job.head_dim * kFloatBytes : 0;
}

// What a token takes beside its vectors: its row, or its share of a job for each page; its scale.
int64_t TokenBytes(const RotateJob& job, bool in_pages) {
  const int64_t row = in_pages ? (kJobBytes + kPageRows - 1) / kPageRows : RowBytes(job);
  return row + (job.token_scales.empty() ? 0 : kFloatBytes);
}

// What a piece takes beside its tokens: jobs, weights, and what aligning its slots, its rows and
// the end of the floats takes.
int64_t FixedBytes(const RotateJob& job, bool in_pages) {
  return (in_pages ? 2 : 1) * kJobBytes + 4 * kSlotAlignment + WeightBytes(job);
}

// Fills chunks of at most `chunk_bytes`, or of one token.
class Cutter {
 public:
  Cutter(int64_t chunk_bytes, int64_t table_bytes)
      : chunk_bytes_(chunk_bytes), table_bytes_(table_bytes) {}

  absl::Status Add(const RotateJob& job, const CudaTokens& part) {
    int64_t token = part.token;
    const int64_t end = part.token + part.tokens;
    while (token < end) {
      const int64_t fit = std::min(TokensThatFit(job, token, part.in_pages), end - token);
      if (fit > 0) {
        Append(job, {token, fit, part.in_pages});
        token += fit;
      } else if (!chunk_.pieces.empty()) {
        Close();
      } else if (FitsLane(job, part.in_pages)) {
        Append(job, {token++, 1, part.in_pages});
      } else {
        return MakeError(Reason::kNotBuilt, "cuda",
                         StrCat("a token of ", job.heads, " heads of ", job.head_dim, " channels"),
                         StrCat("one that fits ", kCudaLaneBytes, " bytes"));
      }
    }
    return absl::OkStatus();
  }

  std::vector<CudaChunk> Finish() {
    Close();
    return std::move(chunks_);
  }

 private:
  static bool FitsLane(const RotateJob& job, bool in_pages) {
    return FixedBytes(job, in_pages) + TokenBytes(job, in_pages) + job.heads * SlotBytes(job) <=
               kCudaLaneBytes &&
           job.heads * job.head_dim <= kElementsMax;
  }

  int64_t TokensThatFit(const RotateJob& job, int64_t token, bool in_pages) const {
    const int64_t bytes = job.heads * SlotBytes(job) + TokenBytes(job, in_pages);
    const int64_t elements = job.heads * job.head_dim;
    int64_t fit = kElementsMax / elements;
    if (bytes > 0) fit = std::min(fit, (chunk_bytes_ - used_ - FixedBytes(job, in_pages)) / bytes);
    if (!in_pages) return fit;
    if (SharesPages(job, token)) return std::min(fit, chunk_.pieces.back().tokens);
    // A run begins and ends within a page.
    return std::min(fit, (table_bytes_ - pages_) / RowBytes(job) - 2 * kPageRows);
  }

  // Whether the last piece begins with the same rows, as q and k do.
  bool SharesPages(const RotateJob& job, int64_t token) const {
    if (chunk_.pieces.empty()) return false;
    const CudaPiece& last = chunk_.pieces.back();
    return last.in_pages && last.job->rows.data() == job.rows.data() && last.token == token &&
           last.job->geometry.pairs == job.geometry.pairs;
  }

  void Append(const RotateJob& job, const CudaTokens& part) {
    CudaPiece piece;
    piece.job = &job;
    piece.token = part.token;
    piece.tokens = part.tokens;
    piece.in_pages = part.in_pages;
    const bool head_major = job.output_memory != MemoryKind::kPinned &&
                            job.input_strides.token < job.input_strides.head;
    piece.slot_strides = head_major
                             ? Strides{.token = job.head_dim, .head = part.tokens * job.head_dim}
                             : Strides{.token = job.heads * job.head_dim, .head = job.head_dim};
    used_ += FixedBytes(job, part.in_pages) + part.tokens * TokenBytes(job, part.in_pages) +
             part.tokens * job.heads * SlotBytes(job);
    if (part.in_pages && !SharesPages(job, part.token)) {
      pages_ += (part.tokens + 2 * kPageRows) * RowBytes(job);
    }
    chunk_.pieces.push_back(piece);
  }

  void Close() {
    if (chunk_.pieces.empty()) return;
    Place(chunk_);
    chunks_.push_back(std::move(chunk_));
    chunk_ = CudaChunk();
    used_ = pages_ = 0;
  }

  // The layout of cuda_batch.h.
  static void Place(CudaChunk& chunk) {
    int64_t end = 0;
    for (CudaPiece& piece : chunk.pieces) {
      if (!HasOutputSlot(*piece.job)) continue;
      piece.output_slot = end;
      end = RoundUp(end + piece.output_bytes());
    }
    chunk.upload_begin = end;
    for (CudaPiece& piece : chunk.pieces) {
      if (!IsInHost(piece.job->input_memory)) continue;
      piece.slot = end;
      if (OverwritesSlot(*piece.job)) piece.output_slot = end;
      end = RoundUp(end + piece.bytes());
    }
    int64_t floats = 0;
    const CudaPiece* before = nullptr;
    for (CudaPiece& piece : chunk.pieces) {
      floats += piece.floats();
      if (!piece.in_pages && before != nullptr && SharesRows(*before, piece)) {
        piece.rows = before->rows;
      } else if (!piece.in_pages) {
        piece.rows = end;
        end = RoundUp(end + piece.tokens * RowBytes(*piece.job));
      }
      before = &piece;
    }
    chunk.floats_offset = end;
    chunk.floats_end = end + floats * kFloatBytes;
    chunk.jobs_offset = RoundUp(chunk.floats_end);
  }

  const int64_t chunk_bytes_;
  const int64_t table_bytes_;
  std::vector<CudaChunk> chunks_;
  CudaChunk chunk_;
  int64_t used_ = 0;   // bytes of the lane
  int64_t pages_ = 0;  // bytes of the pages
};

// The number of rows from `first` on that follow each other in pages of the table.
int64_t RunLength(absl::Span<const RowRef> rows, size_t first) {
  size_t i = first;
  while (i + 1 < rows.size()) {
    const RowRef& row = rows[i];
    const RowRef& next = rows[i + 1];
    const bool same_page = next.page == row.page && next.index == row.index + 1;
    const bool next_page = row.index == kPageRows - 1 && next.index == 0 && next.page != row.page &&
                           next.page->cached();
    if (!same_page && !next_page) break;
    ++i;
  }
  return static_cast<int64_t>(i - first) + 1;
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

int64_t CudaPiece::floats() const {
  return (job->token_scales.empty() ? 0 : tokens) + WeightBytes(*job) / kFloatBytes;
}

bool HasDenseOutput(const RotateJob& job) {
  return job.output_strides.head == job.head_dim &&
         job.output_strides.token == job.heads * job.head_dim;
}

bool SharesRows(const CudaPiece& piece, const CudaPiece& next) {
  return piece.job->rows.data() == next.job->rows.data() && piece.in_pages == next.in_pages &&
         piece.job->geometry.pairs == next.job->geometry.pairs && piece.token == next.token &&
         piece.tokens == next.tokens;
}

std::vector<CudaTokens> CutCudaTokens(const RotateJob& job) {
  const bool fits = RowBytes(job) > 0 && kPageRows * RowBytes(job) <= kCudaPageBytesMax;
  std::vector<CudaTokens> parts;
  for (int64_t token = 0; token < job.tokens;) {
    const RowRef& row = job.rows[static_cast<size_t>(token)];
    int64_t run = fits ? 1 : job.tokens - token;
    bool in_pages = false;
    if (fits && row.page->cached()) {
      run = RunLength(job.rows, static_cast<size_t>(token));
      in_pages = run >= kCudaRunTokens;
    }
    if (parts.empty() || in_pages || parts.back().in_pages) {
      parts.push_back({token, 0, in_pages});
    }
    parts.back().tokens += run;
    token += run;
  }
  return parts;
}

absl::StatusOr<std::vector<CudaChunk>> CutCudaBatch(absl::Span<const RotateJob> jobs, int workers,
                                                    int64_t table_bytes) {
  int64_t staged = 0;
  for (const RotateJob& job : jobs) staged += job.tokens * job.heads * SlotBytes(job);
  // Two chunks for each worker, so that one is copied while another is rotated.
  const int64_t chunk_bytes =
      staged <= kCudaSmallBytes
          ? kCudaLaneBytes
          : std::clamp(staged / (2 * workers), kCudaSmallBytes, kCudaLaneBytes);
  Cutter cutter(chunk_bytes, table_bytes);
  std::vector<CudaTokens> parts;
  const RotateJob* before = nullptr;
  for (const RotateJob& job : jobs) {
    if (job.tokens == 0 || job.heads == 0 || job.head_dim == 0) continue;
    ROPE_CHECK(job.output_memory != MemoryKind::kPinned || HasDenseOutput(job));
    const bool same_rows = before != nullptr && before->rows.data() == job.rows.data() &&
                           before->tokens == job.tokens &&
                           before->geometry.pairs == job.geometry.pairs;
    if (!same_rows) parts = CutCudaTokens(job);
    before = &job;
    for (const CudaTokens& part : parts) ROPE_RETURN_IF_ERROR(cutter.Add(job, part));
  }
  return cutter.Finish();
}

}  // namespace rope::kernels
