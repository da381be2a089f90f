#include "server/models/model.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "kernels/canonical_text.h"
#include "kernels/config/layer_config.h"
#include "kernels/frequencies/frequencies.h"
#include "proto/wire/message_hash.h"
#include "proto/wire/rope_config.h"
#include "server/error.h"
#include "server/models/limits.h"

namespace rope::server {

absl::StatusOr<std::shared_ptr<const kernels::ResolvedRope>> RopeEntry::Resolve(
    std::optional<int64_t> head_dim) const {
  if (resolved_ != nullptr) return resolved_;
  auto resolved = kernels::Resolve(rope_.layer.config, head_dim);
  if (!resolved.ok()) return InField(field_, resolved.status());
  return resolved;
}

void RopeEntry::Complete() {
  config_id_ = proto::HashId(kernels::CanonicalText(rope_));
  using kernels::KeptBytes;
  bytes_ = static_cast<int64_t>(sizeof(RopeEntry)) + KeptBytes(config_id_) + KeptBytes(field_) +
           rope_.layer.KeptBytes() + KeptBytes(rope_.stated) + KeptBytes(rope_.warnings);
  if (resolved_ != nullptr) bytes_ += resolved_->KeptBytes();
}

void Model::KeepComposite(std::string_view json) {
  if (std::get<kernels::ModelConfig>(config).has_sub_configs()) composite_json = json;
}

absl::StatusOr<kernels::LayerConfig> Model::Layer(const kernels::LayerChoice& choice,
                                                  const std::string& field) const {
  if (const auto* layers = std::get_if<kernels::ModelConfig>(&config)) {
    auto layer = layers->Layer(choice);
    if (!layer.ok()) return InField(field, layer.status());
    if (pairing.has_value()) layer->pairing = pairing;
    return layer;
  }
  if (choice.layer.has_value() || !choice.layer_type.empty()) {
    return InvalidField(
        choice.layer.has_value() ? "rope.layer" : "rope.layer_type",
        field == "rope.config." ? "it together with config" : "it for a single layer",
        "it unset: there is one layer");
  }
  kernels::LayerConfig layer = std::get<kernels::LayerConfig>(config);
  if (pairing.has_value()) layer.pairing = pairing;
  return layer;
}

bool Model::SameLayers(int64_t a, int64_t b) const {
  const auto* const layers = std::get_if<kernels::ModelConfig>(&config);
  return layers != nullptr && layers->SameLayers(a, b);
}

int64_t Model::KeptBytes() const {
  const auto of_config = [](const auto& alternative) { return alternative.KeptBytes(); };
  return static_cast<int64_t>(sizeof(Model)) + std::visit(of_config, config) +
         kernels::KeptBytes(composite_json);
}

std::vector<std::string> LayerTypesOf(const Model& model) {
  std::vector<std::string> types = std::get<kernels::ModelConfig>(model.config).layer_types();
  if (types.empty()) types.emplace_back();
  return types;
}

int64_t WidthOf(const Model& model) {
  int64_t width = 0;
  for (const std::string& type : LayerTypesOf(model)) {
    const auto layer = model.Layer({.layer_type = type}, "");
    if (layer.ok()) width = std::max(width, WidthOf(layer->config));
  }
  return width;
}

v1::Model WriteModel(const std::string& name, const std::string& origin, const Model& model) {
  v1::Model item;
  item.set_name(name);
  item.set_origin(origin);
  const auto& config = std::get<kernels::ModelConfig>(model.config);
  for (const std::string& type : config.layer_types()) item.add_layer_types(type);
  if (config.num_heads()) item.set_num_heads(*config.num_heads());
  if (config.num_kv_heads()) item.set_num_kv_heads(*config.num_kv_heads());
  const auto layer = model.Layer({.layer_type = LayerTypesOf(model).front()}, "");
  if (!layer.ok()) return item;
  item.set_pairing(proto::WritePairing(layer->pairing));
  item.set_rope_type(std::string(Name(layer->config.rope_type)));
  item.set_rope_theta(layer->config.rope_theta);
  if (layer->config.max_position_embeddings) {
    item.set_max_position_embeddings(*layer->config.max_position_embeddings);
  }
  const auto resolved = kernels::Resolve(layer->config);
  if (!resolved.ok()) return item;
  item.set_head_dim((*resolved)->head_dim());
  item.set_rotary_dim((*resolved)->rotary_dim());
  return item;
}

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
  return InvalidField(field, absl::StrCat("\"", ShortText(name, kModelNameBytesMax), "\""),
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
