#include "server/request/validate.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "kernels/status_macros.h"
#include "server/error.h"
#include "server/limits.h"
#include "server/request/explicit_rows.h"
#include "server/request/fused_ops.h"
#include "server/request/plan_reposition.h"
#include "server/request/plan_rotation.h"
#include "server/request/positions.h"
#include "server/request/tensor_reader.h"

namespace rope::server {
namespace {

absl::Status CheckOperation(const v1::RotateRequest& message) {
  switch (message.operation()) {
    case v1::OPERATION_UNSPECIFIED:
    case v1::OPERATION_ROTATE:
    case v1::OPERATION_INVERSE:
    case v1::OPERATION_BACKWARD:
    case v1::OPERATION_ADD_SINUSOIDAL:
      if (!message.has_reposition()) return absl::OkStatus();
      return InvalidField("reposition", "it without OPERATION_REPOSITION", "it unset");
    case v1::OPERATION_REPOSITION:
      if (message.has_reposition()) return absl::OkStatus();
      return InvalidField("reposition", "nothing", "the current positions of the tensors");
    default:
      return InvalidField("operation", static_cast<int>(message.operation()),
                          "OPERATION_ROTATE, OPERATION_INVERSE, OPERATION_BACKWARD, "
                          "OPERATION_REPOSITION or OPERATION_ADD_SINUSOIDAL");
  }
}

absl::Status CheckLabels(const v1::RotateRequest& message) {
  if (static_cast<int64_t>(message.labels_size()) > limits::kLabelsMax) {
    return InvalidField("labels", absl::StrCat(message.labels_size(), " labels"),
                        absl::StrCat("at most ", limits::kLabelsMax));
  }
  for (const auto& [key, value] : message.labels()) {
    const auto key_bytes = static_cast<int64_t>(key.size());
    if (key_bytes < 1 || key_bytes > limits::kLabelKeyBytesMax) {
      return InvalidField("labels", absl::StrCat("a key of ", key_bytes, " bytes"),
                          absl::StrCat("1 to ", limits::kLabelKeyBytesMax));
    }
    if (static_cast<int64_t>(value.size()) > limits::kLabelValueBytesMax) {
      return InvalidField(absl::StrCat("labels[", key, "]"), absl::StrCat(value.size(), " bytes"),
                          absl::StrCat("at most ", limits::kLabelValueBytesMax));
    }
  }
  return absl::OkStatus();
}

// The embedding that the tensors were rotated with; without from_rope, the request's own.
absl::StatusOr<std::shared_ptr<const RopeEntry>> FindFrom(
    const v1::Reposition& reposition, const std::shared_ptr<const RopeEntry>& entry,
    ModelRegistry& registry) {
  if (!reposition.has_from_rope()) return entry;
  return FindFromRope(reposition.from_rope(), registry);
}

// Adds the layers' warnings that are not there yet.
void AddWarnings(const RopeEntries& layers, std::vector<std::string>& warnings) {
  for (const auto& layer : layers) {
    for (const std::string& warning : layer->warnings()) {
      if (!absl::c_linear_search(warnings, warning)) warnings.push_back(warning);
    }
  }
}

}  // namespace

absl::Status Validate(const v1::RotateRequest& message, const proto::SplitMessage& split,
                      ModelRegistry& registry, AdmitTensors admit, Plan& plan) {
  if (static_cast<int64_t>(message.request_id().size()) > limits::kRequestIdBytesMax) {
    return InvalidField("request_id", absl::StrCat(message.request_id().size(), " bytes"),
                        absl::StrCat("at most ", limits::kRequestIdBytesMax));
  }
  ROPE_RETURN_IF_ERROR(CheckLabels(message));
  plan = Plan();
  // Checked first, so that a malformed operation is refused with explicit rows and with layers that
  // do not rotate as well.
  ROPE_RETURN_IF_ERROR(CheckOperation(message));
  if (message.has_rows()) {
    ROPE_RETURN_IF_ERROR(ReadTensors(message, split, plan));
    ROPE_RETURN_IF_ERROR(admit(plan));
    ROPE_RETURN_IF_ERROR(PlanTokenScales(message, std::nullopt, {}, plan));
    return PlanExplicitRows(message, split, plan);
  }
  // `admit` runs once the sizes are known and before positions are copied (plan.h).
  ROPE_ASSIGN_OR_RETURN(const auto entry, FindFirst(message.rope(), registry));
  ROPE_RETURN_IF_ERROR(ReadTensors(message, split, plan));
  ROPE_RETURN_IF_ERROR(admit(plan));
  plan.warnings = entry->warnings();
  plan.rotates = entry->layer().rotates;
  plan.attention_factor_applied = !message.skip_attention_factor();
  ROPE_ASSIGN_OR_RETURN(TokenPositions positions,
                        ReadPositions(message.positions(), split, plan.tensors.front().layout,
                                      entry->layer().config.mrope.has_value(), "positions"));
  ROPE_RETURN_IF_ERROR(PlanTokenScales(
      message, entry->layer().config.original_max_position_embeddings, positions.values[0], plan));
  RopeAt to = {*entry, std::move(positions), {}};
  if (message.rope().has_first_layer()) {
    ROPE_ASSIGN_OR_RETURN(to.layers, FindLayers(message, plan.tensors.front().layout, registry));
    AddWarnings(to.layers, plan.warnings);
  }
  if (message.operation() != v1::OPERATION_REPOSITION) {
    return PlanRotation(message.operation(), std::move(to), plan);
  }
  ROPE_ASSIGN_OR_RETURN(const auto from_entry, FindFrom(message.reposition(), entry, registry));
  ROPE_ASSIGN_OR_RETURN(
      TokenPositions from_positions,
      ReadPositions(message.reposition().from(), split, plan.tensors.front().layout,
                    from_entry->layer().config.mrope.has_value(), "reposition.from"));
  return PlanReposition({*from_entry, std::move(from_positions)}, std::move(to), plan);
}

absl::StatusOr<Plan> Validate(const v1::RotateRequest& message, const proto::SplitMessage& split,
                              ModelRegistry& registry) {
  Plan plan;
  const auto admit = [](const Plan&) { return absl::OkStatus(); };
  ROPE_RETURN_IF_ERROR(Validate(message, split, registry, admit, plan));
  return plan;
}

}  // namespace rope::server
