#include "server/request/validate.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "kernels/status_macros.h"
#include "server/error.h"
#include "server/models/model_registry.h"
#include "server/request/array_reader.h"
#include "server/request/explicit_rows.h"
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
    case v1::OPERATION_REPOSITION:
      return absl::OkStatus();
    default:
      return InvalidField("operation", static_cast<int>(message.operation()),
                          "OPERATION_ROTATE, OPERATION_INVERSE, OPERATION_BACKWARD, "
                          "OPERATION_REPOSITION or OPERATION_ADD_SINUSOIDAL");
  }
}

absl::Status CheckReposition(const v1::RotateRequest& message, v1::Operation operation) {
  if ((operation == v1::OPERATION_REPOSITION) == message.has_reposition()) return absl::OkStatus();
  return message.has_reposition()
             ? InvalidField("reposition", "it without OPERATION_REPOSITION", "it unset")
             : InvalidField("reposition", "nothing", "the current positions of the tensors");
}

// How far tokens move is said once: by a difference, or by the positions before and after.
absl::Status CheckBy(const v1::RotateRequest& fixed, const v1::RotateRequest& values) {
  if (!values.reposition().has_by()) return absl::OkStatus();
  for (const auto& [is_set, field] : {std::pair(values.has_positions(), "positions"),
                                      std::pair(values.reposition().has_from(), "from"),
                                      std::pair(fixed.reposition().has_from_rope(), "from_rope")}) {
    if (is_set) {
      return InvalidField("reposition.by", absl::StrCat("it together with ", field), "it alone");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRequestId(const v1::RotateRequest& message) {
  const auto bytes = static_cast<int64_t>(message.request_id().size());
  if (bytes <= limits::kRequestIdBytesMax) return absl::OkStatus();
  return InvalidField("request_id", absl::StrCat(bytes, " bytes"),
                      absl::StrCat("at most ", limits::kRequestIdBytesMax));
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

// Adds the layers' warnings that are not there yet.
void AddWarnings(const RopeEntries& layers, std::vector<std::string>& warnings) {
  for (const auto& layer : layers) {
    for (const std::string& warning : layer->warnings()) {
      if (!absl::c_linear_search(warnings, warning)) warnings.push_back(warning);
    }
  }
}

// SHD and BSHD are what libraries assume where nobody says a layout. Of a tensor [B, H, S, D] the
// model's heads are then on S. A shard of the heads with as many tokens is warned of as well.
void WarnOfHeads(const v1::RotateRequest& message, const RopeEntry& entry, Plan& plan) {
  for (int i = 0; i < message.tensors_size(); ++i) {
    const Layout& layout = plan.tensors[static_cast<size_t>(i)].layout;
    const v1::Role role = message.tensors(i).role();
    const int64_t heads = entry.heads(role == v1::ROLE_K).value_or(0);
    if (layout.letters != "SHD" && layout.letters != "BSHD") continue;
    if (heads <= 1 || layout.heads == heads || layout.Length('S') != heads) continue;
    if (role == v1::ROLE_UNSPECIFIED) continue;
    plan.warnings.push_back(absl::StrCat("tensors[", i, "].layout: ", layout.letters, " has H ",
                                         layout.heads, " and S ", heads, ", and the model has ",
                                         heads, " heads; is it ",
                                         layout.letters == "SHD" ? "HSD?" : "BHSD?"));
  }
}

// Whether it takes long to find the frequencies of all tokens, or to make those of one length.
bool MakesMany(const Ropes& ropes, const Plan& plan) {
  const auto depends = [](const ResolvedPtr& rope) {
    return rope != nullptr && rope->DependsOnSeqLen();
  };
  const auto& layers = ropes.layers.by_layer();
  if (!ropes.layers.differ() && absl::c_none_of(layers, depends) && !depends(ropes.from_resolved)) {
    return false;
  }
  return plan.tokens > limits::kLengthTokensHereMax || ropes.resolved->rotary_dim() > kWidthHereMax;
}

// A reposition by a difference.
absl::Status PlanMove(const v1::RotateRequest& values, const Ropes& ropes, ArraySource& source,
                      Plan& plan) {
  for (const ResolvedPtr& layer : ropes.layers.by_layer()) {
    if (!layer->DependsOnSeqLen()) continue;
    return InvalidField("reposition.by", "it with frequencies that follow the length",
                        "positions and reposition.from");
  }
  TokenPositions from;
  TokenPositions to;
  ROPE_RETURN_IF_ERROR(ReadMoves(values.reposition().by(), source, plan.tensors.front(), from, to));
  return PlanReposition(ropes, std::move(from), std::move(to), plan);
}

}  // namespace

absl::Status PrepareFixed(const v1::RotateRequest& fixed, ArraySource& source,
                          ModelRegistry& registry, RopeEntries& layers, Ropes& ropes, Plan& plan) {
  // Checked first, so that a malformed operation is refused with explicit rows and with layers that
  // do not rotate as well.
  ROPE_RETURN_IF_ERROR(CheckOperation(fixed));
  if (fixed.has_rows()) {
    ROPE_RETURN_IF_ERROR(PrepareTensors(fixed, source, plan));
    ROPE_RETURN_IF_ERROR(ReadTokenScaling(fixed, std::nullopt, plan));
    return PrepareExplicitRows(fixed, plan);
  }
  if (fixed.rope().has_first_layer()) {
    if (!plan.may_take_long) return NeedsSideThread();
    ROPE_RETURN_IF_ERROR(PrepareTensors(fixed, source, plan));
    ROPE_ASSIGN_OR_RETURN(layers, FindLayers(fixed, plan.tensors.front().layout, registry));
    ropes.entry = layers.front();
  } else {
    ROPE_ASSIGN_OR_RETURN(ropes.entry, registry.Find(fixed.rope(), plan.may_take_long));
    ROPE_RETURN_IF_ERROR(PrepareTensors(fixed, source, plan));
  }
  plan.warnings = ropes.entry->warnings();
  plan.rotates = ropes.entry->layer().rotates;
  plan.attention_factor_applied = !fixed.skip_attention_factor();
  ROPE_RETURN_IF_ERROR(
      ReadTokenScaling(fixed, ropes.entry->layer().config.original_max_position_embeddings, plan));
  AddWarnings(layers, plan.warnings);
  WarnOfHeads(fixed, *ropes.entry, plan);
  if (fixed.operation() != v1::OPERATION_REPOSITION) {
    return PrepareRotation(fixed.operation(), layers, ropes, plan);
  }
  ropes.from_entry = ropes.entry;
  if (fixed.reposition().has_from_rope()) {
    ROPE_ASSIGN_OR_RETURN(ropes.from_entry, FindFromRope(fixed.reposition().from_rope(), registry,
                                                         plan.may_take_long));
  }
  return PrepareReposition(layers, ropes, plan);
}

absl::Status PlanElements(const v1::RotateRequest& fixed, const v1::RotateRequest& values,
                          ArraySource& source, Plan& plan) {
  ROPE_RETURN_IF_ERROR(CheckRequestId(values));
  ROPE_RETURN_IF_ERROR(CheckLabels(values));
  ROPE_RETURN_IF_ERROR(CheckReposition(values, fixed.operation()));
  ROPE_RETURN_IF_ERROR(CheckBy(fixed, values));
  return ReadElements(values, source, plan);
}

absl::Status PlanPositions(const v1::RotateRequest& fixed, const v1::RotateRequest& values,
                           const Ropes& ropes, ArraySource& source, Plan& plan) {
  const v1::Operation operation = fixed.operation();
  if (!plan.may_take_long && MakesMany(ropes, plan)) return NeedsSideThread();
  if (fixed.has_rows()) return PlanExplicitRows(fixed, values, source, plan);
  if (values.reposition().has_by()) return PlanMove(values, ropes, source, plan);
  const Layout& layout = plan.tensors.front().layout;
  ROPE_ASSIGN_OR_RETURN(TokenPositions positions,
                        ReadPositions(values.positions(), source, layout,
                                      ropes.entry->layer().config.mrope.has_value(), "positions"));
  ROPE_RETURN_IF_ERROR(PlanTokenScales(positions.values[0], plan));
  if (operation != v1::OPERATION_REPOSITION) {
    return PlanRotation(operation, ropes, std::move(positions), plan);
  }
  ROPE_ASSIGN_OR_RETURN(
      TokenPositions from_positions,
      ReadPositions(values.reposition().from(), source, layout,
                    ropes.from_entry->layer().config.mrope.has_value(), "reposition.from"));
  return PlanReposition(ropes, std::move(from_positions), std::move(positions), plan);
}

absl::StatusOr<Plan> Validate(const v1::RotateRequest& message, const proto::SplitMessage& split,
                              ModelRegistry& registry) {
  Plan plan;
  Ropes ropes;
  RopeEntries layers;
  ArraySource source(split);
  ROPE_RETURN_IF_ERROR(PrepareFixed(message, source, registry, layers, ropes, plan));
  ROPE_RETURN_IF_ERROR(PlanElements(message, message, source, plan));
  ROPE_RETURN_IF_ERROR(PlanPositions(message, message, ropes, source, plan));
  return plan;
}

namespace {

absl::Status CheckDeviceTensor(const TensorPlan& tensor, const std::string& path) {
  if (!tensor.source.IsOnDevice() || !tensor.place.IsOnDevice()) {
    return InvalidField(path, "host memory in a call for a device",
                        "memory of the device, for each tensor and each output");
  }
  if (tensor.IsGathered()) {
    return RefuseOnDevice(path + ".array.strides", absl::StrCat(tensor.strides->channel, " for D"),
                          "1");
  }
  const auto is_one = [](float weight) { return weight == 1; };
  if (tensor.norm_weight != nullptr && !std::ranges::all_of(*tensor.norm_weight, is_one)) {
    return RefuseOnDevice(path + ".norm.weight", "weights", "weights of 1");
  }
  if (tensor.token_scaled) return RefuseOnDevice(path + ".llama4_scaling_beta", "it", "it unset");
  return absl::OkStatus();
}

absl::Status CheckDeviceRequest(const v1::RotateRequest& fixed, const Plan& plan) {
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    ROPE_RETURN_IF_ERROR(CheckDeviceTensor(plan.tensors[i], absl::StrCat("tensors[", i, "]")));
  }
  if (fixed.has_rows()) return RefuseOnDevice("rows", "rows", "an embedding");
  if (plan.channel_order.value_or(plan.geometry.pairing) != plan.geometry.pairing) {
    return RefuseOnDevice("output.channel_order", "another order", "that of the pairing");
  }
  if (plan.arithmetic != kernels::PairArithmetic::kAdd) return absl::OkStatus();
  return RefuseOnDevice("operation", "OPERATION_ADD_SINUSOIDAL", "another operation");
}

// The length that all sequences have; unset: they differ, or nobody knows it.
std::optional<int64_t> LengthOfAll(const v1::Positions& message, const DevicePositions& positions,
                                   const Layout& layout) {
  if (message.seq_lens_size() == 1) return message.seq_lens(0);
  if (message.seq_lens_size() > 1 || positions.starts.empty()) return std::nullopt;
  const int64_t start = positions.starts.front();
  const auto same = [start](int64_t other) { return other == start; };
  if (!std::ranges::all_of(positions.starts, same)) return std::nullopt;
  return start + std::max<int64_t>(layout.Length('S') * layout.Length('T'), 1);
}

absl::Status PlanUniformMove(const v1::RotateRequest& values, const Ropes& ropes,
                             ArraySource& source, Plan& plan) {
  constexpr absl::string_view kField = "reposition.by";
  if (!values.reposition().has_by()) {
    return RefuseOnDevice("reposition", "positions before and after",
                          "by, one number for all tokens");
  }
  if (ropes.resolved->DependsOnSeqLen()) {
    return InvalidField(kField, "it with frequencies that follow the length",
                        "an embedding without them");
  }
  const auto check = [&](absl::Span<const int64_t> shape) {
    if (shape.empty() || (shape.size() == 1 && shape[0] == 1)) return absl::OkStatus();
    return RefuseOnDevice(kField, absl::StrCat("shape ", Brackets(shape)),
                          "one number for all tokens");
  };
  ROPE_ASSIGN_OR_RETURN(const IntegerArray by,
                        ReadIntegers(values.reposition().by(), source, kField, check));
  const int64_t move = by.values.front();
  ROPE_RETURN_IF_ERROR(CheckMove(move));
  plan.device->move = move;
  return PlanDeviceMove(ropes, move, plan);
}

}  // namespace

absl::Status PlanDevice(const v1::RotateRequest& fixed, const v1::RotateRequest& values,
                        const Ropes& ropes, ArraySource& source, Plan& plan) {
  ROPE_RETURN_IF_ERROR(CheckDeviceRequest(fixed, plan));
  DevicePositions& device = plan.device.emplace();
  if (!plan.rotates) return absl::OkStatus();
  if (fixed.operation() == v1::OPERATION_REPOSITION) {
    if (fixed.reposition().has_from_rope()) {
      return RefuseOnDevice("reposition.from_rope", "it", "one embedding");
    }
    return PlanUniformMove(values, ropes, source, plan);
  }
  const Layout& layout = plan.tensors.front().layout;
  ROPE_RETURN_IF_ERROR(ReadDevicePositions(values.positions(), source, layout, device));
  device.table_rows = ropes.resolved->config().max_position_embeddings.value_or(0);
  return PlanDeviceRotation(fixed.operation(), ropes,
                            LengthOfAll(values.positions(), device, layout), plan);
}

absl::Status CheckOnHost(const Plan& plan) {
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const TensorPlan& tensor = plan.tensors[i];
    if (!tensor.source.IsOnDevice() && !tensor.place.IsOnDevice()) continue;
    return InvalidField(absl::StrCat("tensors[", i, "]"), "memory of a device",
                        "host memory, or a call with a queue of the device");
  }
  return absl::OkStatus();
}

}  // namespace rope::server
