// WarmUp: builds the table pages of a range of positions before requests need them.
//
//   1. PlanWarmUp checks a request and computes the pages to build.
//   2. WarmUpSteps makes steps of the plan, of a few pages each. Requests share the table cache and
//      go on meanwhile. The answer has the pages and bytes of the range, including pages that were
//      cached already.
//
// Threading:  Functions only; the registry and the cache are thread-safe.
// Ownership:  `tables` must outlive the steps.
// Limits:     A plan fits the table cache's budget. Building takes about 30 microseconds for 64
//             positions of 64 frequencies: half a second for the default budget.
#ifndef ROPE_SERVER_CONTROL_WARM_UP_H_
#define ROPE_SERVER_CONTROL_WARM_UP_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/tables/table_cache.h"
#include "rope/v1/admin.pb.h"
#include "server/engine/side_thread.h"
#include "server/models/model_registry.h"
#include "server/request/limits.h"

namespace rope::server {

struct WarmUpPlan {
  std::shared_ptr<const kernels::Frequencies> frequencies;  // null: the layer does not rotate
  int64_t first_page = 0;                                   // of kernels::kPageRows positions
  int64_t pages = 0;
  int64_t bytes = 0;  // of the pages' values
};

// The pages that hold the positions [begin, end), with the attention factor applied as a plain
// rotation does. A layer without rotation needs none.
// INVALID_ARGUMENT, NOT_FOUND: as ModelRegistry::Find; no head_dim; end <= begin. OUT_OF_RANGE: the
// range ends past limits::kPositionMax. FAILED_PRECONDITION: frequencies depend on seq_len.
// RESOURCE_EXHAUSTED: the pages do not fit `budget_bytes`.
absl::StatusOr<WarmUpPlan> PlanWarmUp(const v1::WarmUpRequest& request, ModelRegistry& registry,
                                      int64_t budget_bytes);

// Errors of the table cache.
Steps<v1::WarmUpResponse> WarmUpSteps(WarmUpPlan plan, kernels::TableCache& tables);

}  // namespace rope::server

#endif  // ROPE_SERVER_CONTROL_WARM_UP_H_
