#include "server/request/fused_ops.h"

#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "server/error.h"
#include "server/request/array_reader.h"

namespace rope::server {
namespace {

// Converts `value` for the kernels, which require 0 or a normal float32. Any other value would
// change: it would overflow, or become subnormal or 0.
absl::StatusOr<float> ToFloat(double value, const std::string& field, absl::string_view want) {
  const auto narrow = static_cast<float>(value);
  const float magnitude = std::fabs(narrow);
  const bool holds = value == 0 || (magnitude >= std::numeric_limits<float>::min() &&
                                    magnitude <= std::numeric_limits<float>::max());
  if (holds) return narrow;
  return InvalidField(field, value, want);
}

absl::StatusOr<float> ToPositiveFloat(double value, const std::string& field) {
  constexpr absl::string_view kWant = "a finite number above 0 that float32 holds";
  if (!(value > 0)) return InvalidField(field, value, kWant);
  return ToFloat(value, field, kWant);
}

absl::StatusOr<float> ToFiniteFloat(double value, const std::string& field) {
  return ToFloat(value, field, "a finite number that float32 holds");
}

// Norm and scales apply to a whole tensor. Their meaning for packed q, k and v is not defined, so
// that a tensor with head_ranges may have neither.
absl::Status CheckOneRole(const v1::Tensor& tensor, const std::string& field) {
  if (tensor.head_ranges_size() == 0) return absl::OkStatus();
  return InvalidField(field, "it together with head_ranges", "a tensor of one role");
}

absl::Status CheckOperation(v1::Operation operation, bool linear, const std::string& field) {
  const bool rotates = operation == v1::OPERATION_UNSPECIFIED || operation == v1::OPERATION_ROTATE;
  if (rotates || (linear && operation == v1::OPERATION_BACKWARD)) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("it together with ", v1::Operation_Name(operation)),
                      linear ? "OPERATION_ROTATE or OPERATION_BACKWARD" : "OPERATION_ROTATE");
}

absl::Status ReadNorm(const v1::Tensor& tensor, v1::Operation operation, ArraySource& source,
                      const std::string& field, TensorPlan& plan) {
  ROPE_RETURN_IF_ERROR(CheckOneRole(tensor, field));
  ROPE_RETURN_IF_ERROR(CheckOperation(operation, /*linear=*/false, field));
  ROPE_ASSIGN_OR_RETURN(plan.norm_eps, ToPositiveFloat(tensor.norm().eps(), field + ".eps"));
  if (!tensor.norm().has_weight()) return absl::OkStatus();
  const std::string weight_field = field + ".weight";
  const int64_t head_dim = plan.layout.head_dim;
  const auto check = [&](absl::Span<const int64_t> shape) {
    if (shape.size() == 1 && shape[0] == head_dim && head_dim <= kernels::kHeadDimMax) {
      return absl::OkStatus();
    }
    return InvalidField(
        weight_field + ".shape", Brackets(shape),
        absl::StrCat("[", head_dim, "], one for each channel, at most ", kernels::kHeadDimMax));
  };
  ROPE_ASSIGN_OR_RETURN(const FloatArray weight,
                        ReadFloats(tensor.norm().weight(), source, weight_field, check));
  std::vector<float> values;
  values.reserve(weight.values.size());
  for (size_t i = 0; i < weight.values.size(); ++i) {
    ROPE_ASSIGN_OR_RETURN(
        const float value,
        ToFiniteFloat(weight.values[i], absl::StrCat(weight_field, " element ", i)));
    values.push_back(value);
  }
  plan.norm_weight = std::make_shared<const std::vector<float>>(std::move(values));
  return absl::OkStatus();
}

absl::Status ReadFp8Scales(const v1::Tensor& tensor, const std::string& field, TensorPlan& plan) {
  if (!kernels::IsFloat8(plan.output_dtype)) {
    return InvalidField(
        field, absl::StrCat("it with output of ", v1::DType_Name(MessageDType(plan.output_dtype))),
        "output.dtype DTYPE_FP8_E4M3 or DTYPE_FP8_E5M2 as well");
  }
  if (tensor.fp8_scales_size() > 1) {
    return MakeError(Reason::kNotBuilt, field, absl::StrCat(tensor.fp8_scales_size(), " scales"),
                     "one: others are not built yet");
  }
  ROPE_ASSIGN_OR_RETURN(plan.output_scale, ToPositiveFloat(tensor.fp8_scales(0), field));
  return absl::OkStatus();
}

absl::Status CheckTokenScale(const v1::Tensor& tensor, v1::Operation operation,
                             const std::string& field) {
  ROPE_RETURN_IF_ERROR(CheckOneRole(tensor, field));
  if (tensor.role() != v1::ROLE_Q) return InvalidField(field, "it on ROLE_K", "it on ROLE_Q only");
  return CheckOperation(operation, /*linear=*/true, field);
}

}  // namespace

absl::Status ReadFusedOps(const v1::Tensor& tensor, v1::Operation operation, ArraySource& source,
                          const std::string& path, TensorPlan& plan) {
  if (tensor.has_norm()) {
    ROPE_RETURN_IF_ERROR(ReadNorm(tensor, operation, source, path + ".norm", plan));
  }
  if (tensor.has_scale()) {
    ROPE_RETURN_IF_ERROR(CheckOneRole(tensor, path + ".scale"));
    ROPE_ASSIGN_OR_RETURN(plan.scale, ToFiniteFloat(tensor.scale(), path + ".scale"));
  }
  if (tensor.fp8_scales_size() > 0) {
    ROPE_RETURN_IF_ERROR(ReadFp8Scales(tensor, path + ".fp8_scales", plan));
  }
  return absl::OkStatus();
}

absl::Status ReadTokenScaling(const v1::RotateRequest& message,
                              std::optional<int64_t> original_length, Plan& plan) {
  for (int i = 0; i < message.tensors_size(); ++i) {
    const v1::Tensor& tensor = message.tensors(i);
    if (!tensor.has_llama4_scaling_beta()) continue;
    std::string field = absl::StrCat("tensors[", i, "].llama4_scaling_beta");
    const double beta = tensor.llama4_scaling_beta();
    ROPE_RETURN_IF_ERROR(CheckTokenScale(tensor, message.operation(), field));
    if (!original_length.has_value()) {
      return InvalidField(field, "it without original_max_position_embeddings",
                          "a config that has it: scales count in it");
    }
    if (!plan.token_scaling.has_value()) {
      plan.token_scaling = {beta, *original_length, std::move(field)};
    } else if (!(plan.token_scaling->beta == beta)) {
      return InvalidField(
          field, beta,
          absl::StrCat(plan.token_scaling->beta, ", as the tensor before it that has one"));
    }
    plan.tensors[static_cast<size_t>(i)].token_scaled = true;
  }
  return absl::OkStatus();
}

absl::Status PlanTokenScales(absl::Span<const int64_t> positions, Plan& plan) {
  if (!plan.token_scaling.has_value()) return absl::OkStatus();
  const auto& [beta, length, field] = *plan.token_scaling;
  plan.token_scales.reserve(positions.size());
  for (const int64_t position : positions) {
    const int64_t passed = position / length;
    const auto scale = static_cast<float>(1 + beta * std::log1p(static_cast<double>(passed)));
    if (!std::isfinite(scale)) {
      return InvalidField(field, beta, "a finite number whose scales float32 holds");
    }
    plan.token_scales.push_back(scale);
  }
  return absl::OkStatus();
}

}  // namespace rope::server
