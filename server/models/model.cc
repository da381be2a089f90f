#include "server/models/model.h"

#include <string>

#include "kernels/canonical_text.h"
#include "kernels/config/layer_config.h"
#include "kernels/frequencies/frequencies.h"
#include "proto/wire/message_hash.h"
#include "server/error.h"

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

absl::Status InField(const std::string& config_field, const absl::Status& status) {
  const std::string field = proto::PartsOf(status).field;
  const bool is_of_rope =
      field == "layer" || field == "layer_type" || field == "sub_config" || field == "config_json";
  return Prefixed(is_of_rope ? "rope." : config_field, status);
}

}  // namespace rope::server
