#include "server/control/warm_up.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/error.h"
#include "server/models/model.h"
#include "server/request/array_reader.h"
#include "server/request/limits.h"
#include "server/request/positions.h"

namespace rope::server {
namespace {

// Upper bound for the memory of a kept page in addition to its values.
constexpr int64_t kPageOverheadBytes = 512;
// Leaves room for the pages that requests build meanwhile.
constexpr double kKeptShare = 0.9;
// Pages per step. A step takes about half a millisecond.
constexpr int64_t kPagesPerStep = 16;

absl::Status CheckRange(const v1::WarmUpRequest& request) {
  ROPE_RETURN_IF_ERROR(CheckPosition(request.begin(), "begin"));
  if (request.end() <= request.begin()) {
    return InvalidField("end", request.end(), absl::StrCat("more than begin, ", request.begin()));
  }
  if (request.end() - 1 <= limits::kPositionMax) return absl::OkStatus();
  return MakeError(Reason::kPositionOutOfRange, "end", request.end(),
                   absl::StrCat("at most ", limits::kPositionMax + 1));
}

absl::Status CheckFits(const WarmUpPlan& plan, int64_t budget_bytes) {
  const int64_t page_bytes = plan.bytes / plan.pages + kPageOverheadBytes;
  const auto kept = static_cast<int64_t>(static_cast<double>(budget_bytes) * kKeptShare);
  const int64_t pages_max =
      std::min(kept / page_bytes, kernels::TableCache::PagesMax(budget_bytes));
  return CheckAtMost(plan.pages, pages_max, "end",
                     absl::StrCat(" pages of ", kernels::kPageRows, " positions"),
                     ", the capacity of the table cache (--table_cache_bytes)");
}

}  // namespace

absl::StatusOr<WarmUpPlan> PlanWarmUp(const v1::WarmUpRequest& request, ModelRegistry& registry,
                                      int64_t budget_bytes) {
  ROPE_RETURN_IF_ERROR(CheckRange(request));
  ROPE_ASSIGN_OR_RETURN(const auto entry, registry.Find(request.rope()));
  WarmUpPlan plan;
  if (!entry->layer().rotates) return plan;
  ROPE_ASSIGN_OR_RETURN(const auto resolved, entry->Resolve(std::nullopt));
  if (resolved->DependsOnSeqLen()) {
    return MakeError(Reason::kWrongState, "rope",
                     absl::StrCat("rope_type ", std::string(Name(resolved->config().rope_type)),
                                  ", whose frequencies follow the length of each sequence"),
                     "one whose tables are the same for every request");
  }
  kernels::RowUse use;
  ROPE_ASSIGN_OR_RETURN(use.dtype, ReadRowDType(request.dtype(), resolved->config().precision));
  plan.frequencies = resolved->ForSeqLen(1, kernels::Multiplier::kAttentionFactor, use);
  plan.first_page = request.begin() / kernels::kPageRows;
  plan.pages = (request.end() - 1) / kernels::kPageRows + 1 - plan.first_page;
  const auto columns = static_cast<int64_t>(plan.frequencies->inv_freq.size());
  plan.bytes = plan.pages * kernels::kPageRows * 2 * columns * static_cast<int64_t>(sizeof(float));
  ROPE_RETURN_IF_ERROR(CheckFits(plan, budget_bytes));
  return plan;
}

Steps<v1::WarmUpResponse> WarmUpSteps(WarmUpPlan plan, kernels::TableCache& tables) {
  return [plan = std::move(plan), &tables,
          done = int64_t{0}](v1::WarmUpResponse& response) mutable -> absl::StatusOr<bool> {
    std::vector<int64_t> positions;
    for (const int64_t stop = std::min(plan.pages, done + kPagesPerStep); done < stop; ++done) {
      positions.push_back((plan.first_page + done) * kernels::kPageRows);
    }
    if (!positions.empty()) {  // empty: of a layer that does not rotate
      kernels::TokenRows rows;
      ROPE_RETURN_IF_ERROR(tables.AppendRows(*plan.frequencies, positions, rows));
    }
    response.set_pages(plan.pages);
    response.set_bytes(plan.bytes);
    return done == plan.pages;
  };
}

}  // namespace rope::server
