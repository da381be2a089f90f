#include "server/engine.h"

#include <limits>

#include "kernels/checked_math.h"
#include "kernels/status_macros.h"
#include "server/limits.h"
#include "server/validate.h"

namespace rope::server {
namespace {

// Of the server's memory: what comes in and what goes out, each counted as the larger of them, but
// for what is used where the client has it. A view may stand for more elements than anybody has
// room for.
int64_t HeldBytes(const Request& request) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 4;
  const Plan& plan = request.plan;
  const auto all = kernels::CheckedMultiply(plan.tokens, plan.bytes_per_token);
  if (!all.has_value() || *all > kMost) return kMost;
  int64_t bytes = 2 * *all + limits::kTokenBytes * plan.tokens;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const TensorPlan& tensor = plan.tensors[i];
    const int64_t one = tensor.elements() * tensor.larger_element_bytes();
    if (tensor.place.mapped() != nullptr) bytes -= one;
    if (!request.inputs.empty() && request.inputs[i].mapped() != nullptr) bytes -= one;
  }
  return bytes;
}

}  // namespace

absl::Status Engine::MakePlan(Request& request) {
  if (request.prepared != nullptr) {
    if (request.spans.empty()) return PlanPrepared(request);
    ROPE_RETURN_IF_ERROR(regions_.Read(request));
    ROPE_RETURN_IF_ERROR(PlanPrepared(request));
    return regions_.Place(request);
  }
  const int64_t version = registry_.version();  // before anything is found there
  ROPE_RETURN_IF_ERROR(regions_.Read(request));
  ROPE_ASSIGN_OR_RETURN(request.plan, Validate(request.asked(), request.split, registry_));
  ROPE_RETURN_IF_ERROR(regions_.Place(request));
  if (!request.parsed->kept_fragments.empty()) prepared_.Keep(request, version);
  return absl::OkStatus();
}

absl::Status Engine::Submit(std::unique_ptr<Request>& request) {
  ROPE_RETURN_IF_ERROR(MakePlan(*request));
  ROPE_ASSIGN_OR_RETURN(request->permit, admission_.Admit(HeldBytes(*request)));
  request->enqueued = clock_.Now();
  request->stages.validate = Microseconds(request->enqueued - request->decoded);
  return batcher_.Enqueue(request);
}

}  // namespace rope::server
