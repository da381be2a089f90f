#include "server/models/rope_spec.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "server/error.h"
#include "server/models/limits.h"

namespace rope::server {

absl::Status InField(const std::string& config_field, const absl::Status& status) {
  const std::string field = proto::PartsOf(status).field;
  const bool is_of_rope =
      field == "layer" || field == "layer_type" || field == "sub_config" || field == "config_json";
  return Prefixed(is_of_rope ? "rope." : config_field, status);
}

bool TakesLongToRead(const v1::RopeSpec& spec) {
  const auto json_bytes = static_cast<int64_t>(spec.config_json().size());
  return json_bytes > limits::kConfigJsonHereBytesMax || !spec.sub_config().empty() ||
         spec.has_first_layer();
}

int64_t WidthOf(const v1::RopeConfig& message) {
  const int list = std::max({message.inv_freq().numbers_size(), message.short_factor_size(),
                             message.long_factor_size(), message.mrope_axes_size()});
  return std::max({int64_t{message.head_dim()}, int64_t{message.rotary_dim()}, int64_t{list}});
}

int64_t WidthOf(const kernels::RopeConfig& config) {
  const size_t axes = config.mrope.has_value() ? config.mrope->axes.size() : 0;
  const size_t list = std::max(
      {config.inv_freq.size(), config.short_factor.size(), config.long_factor.size(), axes});
  return std::max(
      {config.head_dim.value_or(0), config.rotary_dim.value_or(0), static_cast<int64_t>(list)});
}

absl::Status CheckModelName(absl::string_view field, absl::string_view name) {
  const bool legal = !name.empty() && name.size() <= kModelNameBytesMax &&
                     std::all_of(name.begin(), name.end(), [](char c) {
                       return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                              absl::string_view("._-/").find(c) != absl::string_view::npos;
                     });
  if (legal) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("\"", name.substr(0, kModelNameBytesMax), "\""),
                      "1 to 128 of a-z A-Z 0-9 . _ - /");
}

absl::Status CheckSpec(const v1::RopeSpec& spec) {
  if (spec.source_case() == v1::RopeSpec::SOURCE_NOT_SET) {
    return InvalidField("rope", "nothing", "exactly one of model, config_id, config, config_json");
  }
  if (spec.has_first_layer()) {
    return InvalidField("rope.first_layer", "it here", "it only in the rope of a RotateRequest");
  }
  if (spec.has_layer() && !spec.layer_type().empty()) {
    return InvalidField("rope", "layer and layer_type", "at most one of them");
  }
  if (!spec.sub_config().empty() && spec.has_config()) {
    return InvalidField("rope.sub_config", "it together with config",
                        "it with config_json or a model");
  }
  if (spec.has_config_id() &&
      (spec.has_layer() || !spec.layer_type().empty() || !spec.sub_config().empty() ||
       spec.pairing() != v1::PAIRING_UNSPECIFIED || spec.compat() != v1::COMPAT_UNSPECIFIED ||
       spec.precision() != v1::PRECISION_UNSPECIFIED)) {
    return InvalidField(
        "rope.config_id",
        "it together with layer, layer_type, sub_config, pairing, compat or precision",
        "config_id only: it includes them");
  }
  return absl::OkStatus();
}

kernels::LayerChoice ChoiceOf(const v1::RopeSpec& spec) {
  kernels::LayerChoice choice;
  if (spec.has_layer()) choice.layer = spec.layer();
  choice.layer_type = spec.layer_type();
  return choice;
}

}  // namespace rope::server
