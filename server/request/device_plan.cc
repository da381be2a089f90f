#include "server/request/device_plan.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/error.h"
#include "server/request/array_reader.h"
#include "server/request/limits.h"
#include "server/request/positions.h"
#include "server/request/rotation_plan.h"

namespace rope::server {
namespace {

// Of something that tensors in host memory may have.
absl::Status RefuseOnDevice(absl::string_view field, absl::string_view got,
                            absl::string_view want) {
  return MakeError(Reason::kNotBuilt, field, absl::StrCat(got, " with tensors on a device"), want);
}

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
  if (move < -limits::kPositionMax || move > limits::kPositionMax) {
    return MakeError(Reason::kPositionOutOfRange, kField, move,
                     absl::StrCat("at most ", limits::kPositionMax, " forwards or back"));
  }
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
