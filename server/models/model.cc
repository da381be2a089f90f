#include "server/models/model.h"

#include <algorithm>
#include <vector>

#include "kernels/canonical_text.h"
#include "kernels/config/kept_bytes.h"
#include "kernels/frequencies/frequencies.h"
#include "proto/wire/message_hash.h"
#include "proto/wire/rope_config.h"
#include "server/error.h"
#include "server/models/rope_spec.h"

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
         kernels::KeptBytes(origin) + kernels::KeptBytes(owner) +
         kernels::KeptBytes(composite_json);
}

namespace {

// A choice for each layer type; one that chooses nothing if all layers are equal.
std::vector<kernels::LayerChoice> ChoicesOf(const Model& model) {
  std::vector<kernels::LayerChoice> choices;
  if (const auto* config = std::get_if<kernels::ModelConfig>(&model.config)) {
    for (const std::string& type : config->layer_types()) choices.push_back({.layer_type = type});
  }
  if (choices.empty()) choices.emplace_back();
  return choices;
}

}  // namespace

void Model::Summarize() {
  const std::vector<kernels::LayerChoice> choices = ChoicesOf(*this);
  width = 0;
  for (const kernels::LayerChoice& choice : choices) {
    const auto layer = Layer(choice, "");
    if (layer.ok()) width = std::max(width, WidthOf(layer->config));
  }
  shown.reset();
  head_dim = 0;
  rotary_dim = 0;
  const auto layer = Layer(choices.front(), "");
  if (!layer.ok()) return;
  shown = ShownLayer{.pairing = layer->pairing,
                     .rope_type = layer->config.rope_type,
                     .rope_theta = layer->config.rope_theta,
                     .max_position_embeddings = layer->config.max_position_embeddings};
  const auto resolved = kernels::Resolve(layer->config);
  if (!resolved.ok()) return;
  head_dim = (*resolved)->head_dim();
  rotary_dim = (*resolved)->rotary_dim();
}

v1::Model WriteModel(const std::string& name, const Model& model) {
  v1::Model item;
  item.set_name(name);
  item.set_origin(model.origin);
  item.set_head_dim(model.head_dim);
  item.set_rotary_dim(model.rotary_dim);
  if (const auto* config = std::get_if<kernels::ModelConfig>(&model.config)) {
    for (const std::string& type : config->layer_types()) item.add_layer_types(type);
    if (config->num_heads()) item.set_num_heads(*config->num_heads());
    if (config->num_kv_heads()) item.set_num_kv_heads(*config->num_kv_heads());
  }
  if (!model.shown.has_value()) return item;
  const ShownLayer& layer = *model.shown;
  item.set_pairing(proto::WritePairing(layer.pairing));
  item.set_rope_type(std::string(Name(layer.rope_type)));
  item.set_rope_theta(layer.rope_theta);
  if (layer.max_position_embeddings) {
    item.set_max_position_embeddings(*layer.max_position_embeddings);
  }
  return item;
}

}  // namespace rope::server
