// WarmUp: builds the table pages of a range of positions before requests need them, on a separate
// thread, so that no caller's thread waits.
//
//   1. PlanWarmUp checks a request and computes the pages to build.
//   2. WarmUpWorker::Start queues the plan. The worker builds one plan at a time, a few pages per
//      step. Requests share the table cache and go on meanwhile.
//   3. `done` gets the pages and bytes of the range, including pages that were cached already.
//
// Threading:  Thread-safe.
// Ownership:  `tables` must outlive the worker. Start takes the job if and only if it returns OK;
//             `done` then runs exactly once, on the worker's thread.
// Errors:     RESOURCE_EXHAUSTED with a retry delay: limits::kWarmUpsMax plans wait already.
//             UNAVAILABLE: draining. Through `done`: CANCELLED, UNAVAILABLE, errors of the table
//             cache.
// Limits:     A plan fits the table cache's budget. Building takes about 30 microseconds for 64
//             positions of 64 frequencies: half a second for the default budget.
#ifndef ROPE_SERVER_CONTROL_WARM_UP_H_
#define ROPE_SERVER_CONTROL_WARM_UP_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "kernels/frequencies/frequencies.h"
#include "kernels/tables/table_cache.h"
#include "proto/mutex.h"
#include "rope/v1/admin.pb.h"
#include "server/models/model_registry.h"

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

class WarmUpWorker {
 public:
  using Done = std::function<void(absl::StatusOr<v1::WarmUpResponse>)>;

  explicit WarmUpWorker(kernels::TableCache& tables);
  // Drains.
  ~WarmUpWorker();

  // Checks `cancelled` between steps.
  absl::Status Start(WarmUpPlan plan, std::shared_ptr<std::atomic<bool>> cancelled, Done& done);

  // Refuses new plans, answers waiting and running plans with UNAVAILABLE, and returns when all are
  // answered.
  void Drain();

 private:
  struct Job {
    WarmUpPlan plan;
    std::shared_ptr<std::atomic<bool>> cancelled;
    Done done;
  };

  void Loop();
  absl::StatusOr<v1::WarmUpResponse> Build(const Job& job);

  kernels::TableCache& tables_;
  std::atomic<bool> draining_ = false;

  proto::Mutex mutex_;
  proto::CondVar work_;  // jobs_ or draining_ has changed
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: it uses all members above
};

}  // namespace rope::server

#endif  // ROPE_SERVER_CONTROL_WARM_UP_H_
