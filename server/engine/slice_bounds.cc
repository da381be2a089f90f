#include "server/engine/slice_bounds.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "kernels/tables/table_cache.h"
#include "server/error.h"
#include "server/limits.h"

namespace rope::server {
namespace {

struct UsedPage {
  const kernels::Frequencies* frequencies = nullptr;
  int64_t page = 0;
  bool operator==(const UsedPage&) const = default;
};

// The pages that a slice has used so far.
class SlicePages {
 public:
  void Forget() {
    used_.fill({});
    StartRun();
  }
  void StartRun() {
    last_.fill(kNoPage);
    in_a_row_.fill(0);
  }

  // The number of rows that the slice has to build for this token and not for an earlier one.
  int64_t RowsOf(const Plan& plan, const TokenRun& run, size_t token) {
    if (run.from != nullptr) return 2 * limits::kExactRowRows;
    const auto& positions = plan.positions;
    if (plan.mrope == nullptr) return AxisRows(run, 0, positions[0][token]);
    int64_t rows = 0;
    for (size_t axis = 0; axis < 3; ++axis) rows += AxisRows(run, axis, positions[axis][token]);
    const bool same =
        positions[0][token] == positions[1][token] && positions[0][token] == positions[2][token];
    return same ? rows : rows + 1;  // the token's own row, of columns from three others
  }

 private:
  static constexpr int64_t kNoPage = std::numeric_limits<int64_t>::min();
  using Pair = std::array<UsedPage, 2>;
  static constexpr size_t kPairs = 16;
  static_assert(kernels::kPageRows == int64_t{1} << 6);

  int64_t AxisRows(const TokenRun& run, size_t axis, int64_t position) {
    const int64_t page = position >> 6;  // rounds down, also for a difference below 0
    const bool same = page == last_[axis];
    if (!run.frequencies->cacheable) {
      // One or two positions in a row are built one by one, more by page (TableCache).
      in_a_row_[axis] = same ? in_a_row_[axis] + 1 : 1;
      last_[axis] = page;
      constexpr int64_t kPage = kernels::kPageRows / limits::kExactRowRows;
      return in_a_row_[axis] <= kPage ? limits::kExactRowRows : 0;
    }
    if (same) return 0;
    const bool next = page == last_[axis] + 1;
    last_[axis] = page;
    const UsedPage used = {run.frequencies.get(), page};
    const auto address = reinterpret_cast<uintptr_t>(used.frequencies) / alignof(std::max_align_t);
    Pair& pair = used_[(address + static_cast<uintptr_t>(page)) % kPairs];
    if (pair[0] == used || pair[1] == used) return 0;
    pair = {used, pair[0]};
    return next ? limits::kNextPageRows : kernels::kPageRows;
  }

  std::array<int64_t, 3> last_{kNoPage, kNoPage, kNoPage};  // by axis: the page of the last token
  std::array<int64_t, 3> in_a_row_{};                       // by axis: tokens in a row on that page
  // The last two pages of each hash. An older one counts again.
  std::array<Pair, kPairs> used_{};
};

// What a row counts: its bytes, and more if it takes longer than its bytes say.
int64_t RowBytes(const kernels::Frequencies& frequencies) {
  const auto columns =
      std::max(static_cast<int64_t>(frequencies.inv_freq.size()), limits::kBuildColumnsMin);
  const int64_t bytes = 2 * columns * static_cast<int64_t>(sizeof(float));
  return frequencies.eager.has_value() ? bytes * limits::kEagerRowFactor : bytes;
}

// Jobs that a tensor becomes: `units` for each `run` of tokens.
struct JobRuns {
  int64_t units = 0;
  int64_t run = 0;
};

JobRuns JobRunsOf(const TensorPlan& tensor) {
  const Layout& layout = tensor.layout;
  const int64_t last = layout.token_axes.empty() ? 1 : layout.token_axes.back().length;
  const int64_t spans = std::ssize(tensor.heads);
  if (tensor.strides.has_value()) return {spans, last};
  const int64_t run =
      tensor.output_strides.has_value() ? last : std::numeric_limits<int64_t>::max();
  if (layout.post == 1) return {spans, run};
  return {layout.heads, std::min(run, layout.post)};  // tokens inside heads: each head has its jobs
}

// Separate writes of the result to an object. Heads that are adjacent on both sides are one write.
int64_t WritesOf(const TensorPlan& tensor) {
  if (!tensor.store_strides.has_value()) return 0;
  const Layout& layout = tensor.layout;
  const bool adjacent = layout.post == 1 && tensor.store_strides->head == layout.head_dim;
  return adjacent ? layout.tokens() : layout.tokens() * layout.heads;
}

// Of all results that the reply has as numbers.
absl::Status CheckNumbers(const Plan& plan) {
  int64_t elements = 0;
  for (const TensorPlan& tensor : plan.tensors) {
    if (!tensor.numbers || !IsInReply(tensor.destination)) continue;
    elements += tensor.output_bytes() / kernels::ElementBytes(tensor.output_dtype);
  }
  if (elements <= limits::kReplyNumbersMax) return absl::OkStatus();
  return MakeError(Reason::kLimitExceeded, "tensors",
                   absl::StrCat(elements, " numbers in the reply"),
                   absl::StrCat("at most ", limits::kReplyNumbersMax, ", or raw bytes"));
}

// The last slice stores all results at once.
absl::Status CheckWrites(const Plan& plan) {
  int64_t writes = 0;
  for (const TensorPlan& tensor : plan.tensors) writes += WritesOf(tensor);
  if (writes <= limits::kObjectWritesMax) return absl::OkStatus();
  return MakeError(Reason::kLimitExceeded, "output.strides",
                   absl::StrCat(writes, " separate writes to POSIX shared memory"),
                   absl::StrCat("at most ", limits::kObjectWritesMax,
                                ", or packed outputs, or outputs in a memfd"));
}

absl::Status CheckTokenBytes(const Plan& plan) {
  if (plan.bytes_per_token > limits::kTokenBytesMax) {
    return MakeError(Reason::kLimitExceeded, "tensors",
                     absl::StrCat(plan.bytes_per_token, " bytes for each token"),
                     absl::StrCat("at most ", limits::kTokenBytesMax));
  }
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const int64_t bytes = plan.tensors[i].token_bytes();
    if (!plan.tensors[i].IsGathered() || bytes <= limits::kGatheredTokenBytesMax) continue;
    return MakeError(
        Reason::kLimitExceeded, absl::StrCat("tensors[", i, "].array.strides"),
        absl::StrCat("a channel stride of ", plan.tensors[i].strides->channel, " and ", bytes,
                     " bytes for each token"),
        absl::StrCat("a channel stride of 1, or at most ", limits::kGatheredTokenBytesMax));
  }
  return absl::OkStatus();
}

}  // namespace

void BoundBuilding(Plan& plan) {
  plan.building = {};
  if (!plan.rotates || plan.row_sets.empty()) return;
  SlicePages pages;
  std::vector<int64_t> ends;
  BuildBounds& building = plan.building;
  int64_t bytes = 0;                                        // since the last end
  for (const TokenRun& run : plan.row_sets.front().runs) {  // other sets have the same runs
    const int64_t row_bytes = RowBytes(*run.frequencies) * std::ssize(plan.row_sets);
    pages.StartRun();
    for (int64_t token = run.begin; token < run.end; ++token) {
      int64_t rows = pages.RowsOf(plan, run, static_cast<size_t>(token));
      if (rows == 0) continue;
      if (bytes > 0 && bytes + rows * row_bytes > limits::kSliceBuildBytesMax) {
        ends.push_back(token);
        pages.Forget();
        rows = pages.RowsOf(plan, run, static_cast<size_t>(token));
        bytes = 0;
      }
      bytes += rows * row_bytes;
      building.bytes += rows * row_bytes;
      building.slice_bytes = std::max(building.slice_bytes, bytes);
    }
  }
  if (ends.empty()) return;
  building.slice_ends = std::make_shared<const std::vector<int64_t>>(std::move(ends));
}

absl::Status BoundJobs(Plan& plan) {
  plan.jobs = {};
  if (plan.bytes() == 0) return absl::OkStatus();
  ROPE_RETURN_IF_ERROR(CheckTokenBytes(plan));
  ROPE_RETURN_IF_ERROR(CheckWrites(plan));
  ROPE_RETURN_IF_ERROR(CheckNumbers(plan));
  int64_t units = 0;  // the jobs of one token
  for (const TensorPlan& tensor : plan.tensors) {
    const JobRuns jobs = JobRunsOf(tensor);
    units += jobs.units;
    plan.jobs.per_token += static_cast<double>(jobs.units) / static_cast<double>(jobs.run);
  }
  plan.jobs.fixed = 2 * units;  // a slice may begin and end within a run
  if (units <= limits::kJobsMax) return absl::OkStatus();
  return MakeError(Reason::kLimitExceeded, "tensors",
                   absl::StrCat(units, " separate heads and head_ranges for each token"),
                   absl::StrCat("at most ", limits::kJobsMax, ", or H behind the token axes"));
}

}  // namespace rope::server
