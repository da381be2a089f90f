#include "server/engine/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/engine/job_tiler.h"
#include "server/engine/request_cost.h"
#include "server/error.h"
#include "server/request/limits.h"
#include "server/request/region_resolver.h"
#include "server/request/token_runs.h"
#include "server/request/validate.h"

namespace rope::server {

// Plans a request on the side thread, which answers it if it is refused.
class Engine::Planning final : public SideThread::Work {
 public:
  Planning(Engine& engine, std::unique_ptr<Request> request)
      : engine_(engine), request_(std::move(request)) {}

  absl::StatusOr<bool> Step() override {
    if (request_->arrival.IsCancelled()) {
      return MakeError({.reason = Reason::kCancelled}, "request: cancelled while it waited");
    }
    ROPE_RETURN_IF_ERROR(engine_.MakePlan(*request_, /*may_take_long=*/true));
    ROPE_RETURN_IF_ERROR(engine_.batcher_.Queue(request_));
    return true;
  }
  void End(const absl::Status& status) override {
    if (status.ok()) return;
    const Request::Done done = std::move(request_->done);
    done(std::move(request_), status);
  }

 private:
  Engine& engine_;
  std::unique_ptr<Request> request_;
};

Engine::Engine(ModelRegistry& registry, PreparedRotations& prepared, Admission& admission,
               Batcher& batcher, const RegionResolver& regions, const Clock& clock,
               const Options& options)
    : registry_(registry),
      prepared_(prepared),
      admission_(admission),
      batcher_(batcher),
      regions_(regions),
      clock_(clock),
      options_(options),
      side_thread_(clock) {}

absl::Status Engine::Submit(std::unique_ptr<Request>& request) {
  ROPE_ASSIGN_OR_RETURN(request->permit,
                        admission_.Admit(request->arrival.session, DecodedBytes(*request)));
  const absl::Status status = PlanOrEnqueue(request);
  if (!status.ok()) request->permit = Permit();
  return status;
}

absl::Status Engine::PlanOrEnqueue(std::unique_ptr<Request>& request) {
  const std::string& id = request->values().prepared_id();
  if (!id.empty()) {
    ROPE_ASSIGN_OR_RETURN(request->prepared, prepared_.Find(id));
  }
  const int64_t admitted = request->permit.bytes();
  const absl::Status status = MakePlan(*request, /*may_take_long=*/false);
  if (IsNeedsSideThread(status)) {  // which plans from the beginning
    request->region_copies.clear();
    request->permit.Shrink(admitted);
    return PlanLater(request);
  }
  ROPE_RETURN_IF_ERROR(status);
  return batcher_.Enqueue(request);
}

absl::Status Engine::MakePlan(Request& request, bool may_take_long) {
  ROPE_RETURN_IF_ERROR(WithinMemory([&] { return FillPlan(request, may_take_long); }));
  request.run.enqueued = clock_.Now();
  request.stages.validate =
      Microseconds(request.run.enqueued - request.arrival.received) - request.stages.decode;
  return absl::OkStatus();
}

absl::Status Engine::PlanLater(std::unique_ptr<Request>& request) {
  const uint64_t session = request->arrival.session;
  side_thread_.StartRequest(session, std::make_unique<Planning>(*this, std::move(request)));
  return absl::OkStatus();
}

// In the order of the work: no memory is taken before it is admitted.
absl::Status Engine::FillPlan(Request& request, bool may_take_long) {
  const v1::RotateRequest& fixed = request.asked();
  const v1::RotateRequest& values = request.values();
  RegionResolver::Source source(regions_, request);
  Plan& plan = request.plan;
  Ropes own;  // of a request without a prepared_id
  if (request.prepared != nullptr) {
    ROPE_RETURN_IF_ERROR(BeginCall(*request.prepared, values, plan));
    plan.may_take_long = may_take_long;
  } else {
    plan = Plan();
    plan.may_take_long = may_take_long;
    RopeEntries layers;
    ROPE_RETURN_IF_ERROR(PrepareFixed(fixed, source, registry_, layers, own, plan));
  }
  if (!may_take_long && PlanningBytes(values, plan) > limits::kPlanHereBytesMax) {
    return NeedsSideThread();
  }
  ROPE_RETURN_IF_ERROR(PlanElements(fixed, values, source, plan));
  ROPE_RETURN_IF_ERROR(regions_.Place(request));
  SetDestinations(*request.decoded.bytes, options_.overwrite_bytes_min, plan);
  ROPE_RETURN_IF_ERROR(request.permit.Grow(RunningBytes(fixed, plan), "request"));
  ROPE_RETURN_IF_ERROR(BoundJobs(plan));
  const Ropes& ropes = request.prepared != nullptr ? request.prepared->ropes : own;
  ROPE_RETURN_IF_ERROR(PlanPositions(fixed, values, ropes, source, plan));
  ROPE_RETURN_IF_ERROR(CheckReplyBytes(request));
  return request.permit.Grow(PlannedBytes(plan), "positions");
}

absl::Status Engine::CheckReplyBytes(const Request& request) const {
  const int64_t bytes = ReplyBytes(request.plan);
  if (bytes > options_.reply_bytes_max) {
    return MakeError(Reason::kLimitExceeded, "output", absl::StrCat(bytes, " bytes in the reply"),
                     absl::StrCat("at most ", options_.reply_bytes_max,
                                  " (--max_message_bytes), or outputs in regions"));
  }
  if (!request.arrival.reply_bytes_max.has_value()) return absl::OkStatus();
  const int64_t slot = *request.arrival.reply_bytes_max;
  const int64_t most = bytes + ReplyTextBytesMax(request);
  if (most <= slot) return absl::OkStatus();
  return MakeError(
      Reason::kLimitExceeded, "reply", absl::StrCat("up to ", most, " bytes"),
      absl::StrCat("at most ", slot, " in a ring: put outputs into regions, or call without it"));
}

}  // namespace rope::server
