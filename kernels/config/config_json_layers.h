// PerLayerConfig: what a config.json states for single layers in per_layer_config, an object by
// layer index. LayerList: the type of each layer, and which layers rotate. Internal to config_json.
//
// Threading:  Values and pure functions; any thread.
// Ownership:  PerLayerConfig is a view; the parsed file must outlive it.
// Errors:     INVALID_ARGUMENT only: "path: got X, want Y".
#ifndef ROPE_KERNELS_CONFIG_CONFIG_JSON_LAYERS_H_
#define ROPE_KERNELS_CONFIG_CONFIG_JSON_LAYERS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/config/config_json_document.h"
#include "kernels/config/json_fields.h"
#include "kernels/config/layer_config.h"

namespace rope::kernels {

// The objects of the layers, by the type of their layer.
using PerLayerConfig = std::map<std::string, std::vector<JsonFields>, std::less<>>;

// Sorts the objects in one pass. `types` are those of `model`; no object is read without them.
absl::StatusOr<PerLayerConfig> ReadPerLayerConfig(const JsonFields& model, const LayerTypes& types);

// The first value that a layer of the type states for `key`; all of them have the same. Unset if
// none does.
Field<int64_t> IntegerOf(const PerLayerConfig& per_layer, std::string_view layer_type,
                         std::string_view key);

inline constexpr int64_t kLayersMax = 65536;

struct LayerList {
  std::optional<int64_t> count;  // num_hidden_layers, or the length of a list of layers
  LayerTypes types;              // by layer; empty if the file has no list and no rule
  std::vector<double> thetas;    // by layer, its base, or 0; empty if the file has no such list
  std::vector<bool> no_rope;     // by layer, true if it does not rotate; empty if all rotate
};

// Layer types come from the first of these keys that the file has:
//   layer_types                 a list; layers_block_type in older files
//   hybrid_layer_pattern        a list of 0 and 1; 1 is sliding attention
//   block_types                 a list that repeats
//   attn_layer_indices, full_attn_idxs
//                               the layers with full attention; the others have linear attention
//   sliding_window_pattern      a period whose last layer has full attention, or the letters L
//                               (local, sliding) and G (global, full), repeated
//   global_attn_every_n_layers  a period whose first layer has full attention
//   full_attention_interval a period whose last layer has full attention; the others have linear
//                               attention
// or else from the rule of the model_type's config class.
//
// These layers do not rotate:
//   zeros of no_rope_layers or of layer_rope_theta, else the last layer of each
//   no_rope_layer_interval, else by the rule of the model_type's config class
//   the layers of cross_attention_layers (Llama 3.2 Vision): their keys are those of an image
//   layers without attention scores (linear_attention, mamba, conv, recurrent)
//   full attention in models that use it without positions (Cohere 2, EXAONE 4 with a window)
absl::StatusOr<LayerList> ReadLayerList(const ConfigDocument& document);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_CONFIG_JSON_LAYERS_H_
