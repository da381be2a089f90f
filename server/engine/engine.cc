#include "server/engine/engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/engine/request_cost.h"
#include "server/engine/slice_bounds.h"
#include "server/error.h"
#include "server/limits.h"
#include "server/request/destination.h"
#include "server/request/token_runs.h"
#include "server/request/validate.h"

namespace rope::server {
namespace {

// The most channels of a head of any tensor, from the layouts and shapes.
int64_t ClaimedChannels(const v1::RotateRequest& asked) {
  int64_t channels = 0;
  for (const v1::Tensor& tensor : asked.tensors()) {
    const size_t axis = tensor.layout().find('D');
    if (axis >= static_cast<size_t>(tensor.array().shape_size())) continue;
    channels = std::max(channels, int64_t{tensor.array().shape(static_cast<int>(axis))});
  }
  return channels;
}

// Whether the embeddings of a request take longer to find and resolve than the thread that received
// it may spend. Resolves none of them (ModelRegistry::TakesLong).
bool TakesLongToFind(const v1::RotateRequest& asked, const ModelRegistry& registry) {
  const int64_t channels = ClaimedChannels(asked);
  return registry.TakesLong(asked.rope(), channels) ||
         registry.TakesLong(asked.reposition().from_rope(), channels);
}

}  // namespace

// Plans a request on the side thread, which answers it if it is refused.
class Engine::Planning final : public SideThread::Work {
 public:
  Planning(Engine& engine, std::unique_ptr<Request> request)
      : engine_(engine), request_(std::move(request)) {}

  absl::StatusOr<bool> Step() override {
    ROPE_RETURN_IF_ERROR(engine_.PlanAndQueue(request_));
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
  bool here = false;
  ROPE_RETURN_IF_ERROR(WithinMemory([&] {
    here = PlansHere(*request);
    return absl::OkStatus();
  }));
  if (!here) {
    const uint64_t session = request->arrival.session;
    side_thread_.StartRequest(session, std::make_unique<Planning>(*this, std::move(request)));
    return absl::OkStatus();
  }
  ROPE_RETURN_IF_ERROR(MakeWholePlan(*request));
  return batcher_.Enqueue(request);
}

// Looks at specs and regions only if much may depend on them.
bool Engine::PlansHere(const Request& request) {
  const int64_t most = options_.plan_here_bytes_max;
  if (PlanningBytes(request) > most) return false;
  if (request.prepared == nullptr && TakesLongToFind(request.asked(), registry_)) return false;
  if (LengthBytes(request) > most && FrequenciesMayDiffer(request)) return false;
  return RegionTensorBytes(request) <= most || !regions_.CopiesTensors(request);
}

bool Engine::FrequenciesMayDiffer(const Request& request) {
  if (request.prepared != nullptr) {
    const Ropes& ropes = request.prepared->ropes;
    const auto depends = [](const ResolvedPtr& rope) {
      return rope != nullptr && rope->DependsOnSeqLen();
    };
    return depends(ropes.resolved) || depends(ropes.from_resolved) || ropes.layers.differ();
  }
  const auto may_depend = [this](const v1::RopeSpec& spec) {
    const auto entry = registry_.Find(spec);
    if (!entry.ok()) return false;  // planning refuses it
    const kernels::RopeType type = (*entry)->layer().config.rope_type;
    return type == kernels::RopeType::kDynamic || type == kernels::RopeType::kLongrope;
  };
  const v1::RotateRequest& asked = request.asked();
  if (!asked.has_rows() && may_depend(asked.rope())) return true;
  return asked.reposition().has_from_rope() && may_depend(asked.reposition().from_rope());
}

absl::Status Engine::MakeWholePlan(Request& request) {
  ROPE_RETURN_IF_ERROR(WithinMemory([&] { return MakeBoundedPlan(request); }));
  request.run.enqueued = clock_.Now();
  request.stages.validate =
      Microseconds(request.run.enqueued - request.arrival.received) - request.stages.decode;
  return absl::OkStatus();
}

absl::Status Engine::PlanAndQueue(std::unique_ptr<Request>& request) {
  if (request->arrival.IsCancelled()) {
    return MakeError({.reason = Reason::kCancelled}, "request: cancelled while it waited");
  }
  ROPE_RETURN_IF_ERROR(MakeWholePlan(*request));
  return batcher_.Queue(request);
}

absl::Status Engine::MakeBoundedPlan(Request& request) {
  ROPE_RETURN_IF_ERROR(MakePlan(request));
  ROPE_RETURN_IF_ERROR(CheckReplyBytes(request));
  BoundBuilding(request.plan);
  return AdmitBuilding(request);
}

absl::Status Engine::MakePlan(Request& request) {
  RegionResolver::Source source(regions_, request);
  const auto admit = [&](Plan& plan) -> absl::Status {
    ROPE_RETURN_IF_ERROR(regions_.Place(request));
    SetDestinations(*request.decoded.bytes, options_.overwrite_bytes_min, plan);
    ROPE_RETURN_IF_ERROR(request.permit.Grow(RunningBytes(request.asked(), plan), "request"));
    return BoundJobs(plan);
  };
  if (request.prepared == nullptr) {
    return Validate(request.values(), source, registry_, admit, request.plan);
  }
  return PlanCall(*request.prepared, request.values(), source, admit, request.plan);
}

absl::Status Engine::AdmitBuilding(Request& request) {
  const Plan& plan = request.plan;
  const bool builds = plan.building.slice_bytes > limits::kUncountedBuildBytes;
  // Embeddings of many channels may be in no cache, so that the plan alone keeps them.
  const int64_t kept = FrequencyBytes(plan);
  const int64_t frequencies = kept > limits::kUncountedFrequencyBytes ? kept : plan.frequency_bytes;
  const int64_t bytes = frequencies + (builds ? plan.building.slice_bytes : 0);
  return bytes == 0 ? absl::OkStatus() : request.permit.Grow(bytes, "positions");
}

absl::Status Engine::CheckReplyBytes(const Request& request) const {
  const int64_t bytes = ReplyBytes(request.plan);
  if (bytes <= options_.reply_bytes_max) return CheckSlot(request, bytes);
  return MakeError(Reason::kLimitExceeded, "output", absl::StrCat(bytes, " bytes in the reply"),
                   absl::StrCat("at most ", options_.reply_bytes_max,
                                " (--max_message_bytes), or outputs in regions"));
}

absl::Status Engine::CheckSlot(const Request& request, int64_t result_bytes) {
  if (!request.arrival.reply_bytes_max.has_value()) return absl::OkStatus();
  const int64_t bytes = result_bytes + ReplyTextBytesMax(request);
  if (bytes <= *request.arrival.reply_bytes_max) return absl::OkStatus();
  return MakeError(Reason::kLimitExceeded, "reply", absl::StrCat("up to ", bytes, " bytes"),
                   absl::StrCat("at most ", *request.arrival.reply_bytes_max,
                                " in a ring: put outputs into regions, or call without it"));
}

}  // namespace rope::server
