// Reads the rotary embeddings of a verbatim Hugging Face config.json, or of a fragment of one: old
// spelling (rope_scaling, type, a base of their own for sliding layers: rope_local_base_freq,
// local_rope_theta, swa_rope_theta) and new (rope_parameters, nested by layer type), text_config
// nesting; the layers as lists or rules (config_json_layers.h).
//
// Threading:  Immutable after Parse.
// Errors:     INVALID_ARGUMENT: not JSON, a field of the wrong type, an unknown rope_type; several
//             entries and none picked (lists them); a layer or layer_type that does not exist.
#ifndef ROPE_KERNELS_CONFIG_CONFIG_JSON_H_
#define ROPE_KERNELS_CONFIG_CONFIG_JSON_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/config/layer_config.h"

namespace rope::kernels {

class ModelConfig {
 public:
  static absl::StatusOr<ModelConfig> Parse(std::string_view json);

  // Kinds of layer that differ; empty where all layers are the same.
  const std::vector<std::string>& layer_types() const { return layer_types_; }
  // One entry per layer (index -> kind), where the file lists them or gives a rule.
  const std::vector<std::string>& layers() const { return layers_; }
  std::optional<int64_t> num_heads() const { return num_heads_; }
  // k heads that rotate: 1 where all heads share a rope slice (qk_rope_head_dim), num_heads where
  // the file does not say.
  std::optional<int64_t> num_kv_heads() const { return num_kv_heads_; }

  // The embedding of the layers that `choice` picks; no choice is needed where all are the same.
  // `rotates` is false where none of them rotates; where only some do, a warning says so.
  absl::StatusOr<LayerConfig> Layer(const LayerChoice& choice) const;

 private:
  // The entry of a kind of layer; `type` is empty where neither the choice nor the file names one.
  absl::StatusOr<LayerConfig> EntryOf(const LayerChoice& choice, const std::string& type) const;
  // Says in the entry whether the chosen layers rotate.
  void MarkRotation(const LayerChoice& choice, LayerConfig& entry) const;

  std::vector<std::string> layer_types_;
  std::vector<std::string> layers_;
  std::vector<bool> no_rope_;         // by layer index; empty: all rotate
  std::vector<LayerConfig> entries_;  // one for each of layer_types_, or a single one
  std::optional<int64_t> num_layers_;
  std::optional<int64_t> num_heads_;
  std::optional<int64_t> num_kv_heads_;
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_CONFIG_JSON_H_
