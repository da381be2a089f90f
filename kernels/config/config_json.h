// ModelConfig: the rotary embeddings of a verbatim Hugging Face config.json, or of a fragment of
//              one.
//
// A composite file is read by its text_config, or by the sub-config that the caller names
// (config_json_document.h). A params.json of Mistral is read as the config.json that says the same
// (placement.h).
//
// Supported spellings are the old one (rope_scaling, type, a separate base for sliding layers in
// rope_local_base_freq, local_rope_theta or swa_rope_theta) and the new one (rope_parameters,
// nested by layer type), each at the top level or in text_config. Layers are lists or rules
// (config_json_layers.h).
//
// Threading:  Immutable after Parse.
// Errors:     INVALID_ARGUMENT: the text is not JSON; a field has the wrong type; the rope_type is
//             unknown; layers differ and none is chosen (the message lists them); the chosen layer
//             or layer_type does not exist; there is no such sub-config, or none is chosen and only
//             sub-configs have rope parameters (the message lists them); a limit is passed.
// Limits:     64 layer types, of at most 128 bytes each, with 2 MiB of lists in all; 65536 layers;
//             lists of 65536 elements; a model_type of 128 bytes.
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

struct ModelType;

class ModelConfig {
 public:
  // `sub_config` is the path of the config to read in a composite file; empty: the file's own.
  static absl::StatusOr<ModelConfig> Parse(std::string_view json, std::string_view sub_config = "");

  // The layer types with different embeddings; empty if all layers are equal.
  const std::vector<std::string>& layer_types() const { return layer_types_; }
  // The number of layers, if the file lists or numbers them. Unset: all have the same, or only
  // their types are known.
  std::optional<int64_t> numbered_layers() const;
  // Whether the file has sub-configs, of which another may be chosen; false after a choice.
  bool has_sub_configs() const { return has_sub_configs_; }
  std::optional<int64_t> num_heads() const { return num_heads_; }
  // Number of k heads that rotate: 1 if all heads share one rope slice (qk_rope_head_dim),
  // num_heads if the file has no such key.
  std::optional<int64_t> num_kv_heads() const { return num_kv_heads_; }

  // The embedding of the chosen layers. A choice is not needed if all layers are equal. `rotates`
  // is false if none of the chosen layers rotates. If only some do, a note says so.
  absl::StatusOr<LayerConfig> Layer(const LayerChoice& choice) const;

  // Whether both are layers of the model, of one type, and rotate both or neither: Layer then gives
  // the same embedding for both.
  bool SameLayers(int64_t a, int64_t b) const;

  // Bytes in memory, with those of the object.
  int64_t KeptBytes() const;

 private:
  // The entry of a layer type; `type` is empty if neither the choice nor the file names one.
  absl::StatusOr<LayerConfig> EntryOf(const LayerChoice& choice, const std::string& type) const;
  // Sets the base that layer_rope_theta states for the chosen layers. INVALID_ARGUMENT: they have
  // several.
  absl::Status SetTheta(const LayerChoice& choice, LayerConfig& entry) const;
  // The name of the entry for a layer type.
  std::string_view EntryName(std::string_view type) const;
  // Whether the model has layers of this type and none of them rotates.
  bool AllStill(std::string_view type) const;
  // The chosen ones of the layers that the model lists.
  std::vector<size_t> ChosenLayers(const LayerChoice& choice) const;
  // Sets `rotates` and adds a note if some or all chosen layers do not rotate.
  void MarkRotation(const LayerChoice& choice, LayerConfig& entry) const;

  std::vector<std::string> layer_types_;
  LayerTypes layers_;                 // empty: the file has neither a list nor a rule
  std::vector<bool> no_rope_;         // by layer index; empty if all rotate
  std::vector<double> thetas_;        // by layer index, a base or 0; empty if all have one
  const ModelType* type_ = nullptr;   // set by Parse
  std::vector<LayerConfig> entries_;  // one per layer type, or a single one
  std::optional<int64_t> num_layers_;
  std::optional<int64_t> num_heads_;
  std::optional<int64_t> num_kv_heads_;
  bool has_sub_configs_ = false;
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_CONFIG_JSON_H_
