// Reads which layers of a config.json are of which kind and which of them rotate; config_json.h is
// the way in.
//
// Threading:  Pure functions; any thread.
// Errors:     INVALID_ARGUMENT only: "path: got X, want Y".
// Limits:     65536 layers.
#ifndef ROPE_KERNELS_CONFIG_CONFIG_JSON_LAYERS_H_
#define ROPE_KERNELS_CONFIG_CONFIG_JSON_LAYERS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/config/config_json_document.h"

namespace rope::kernels {

inline constexpr int64_t kLayersMax = 65536;

struct LayerList {
  std::optional<int64_t> count;    // num_hidden_layers, or the length of a list of layers
  std::vector<std::string> types;  // by layer; empty where the file does not say
  std::vector<bool> no_rope;       // by layer, true where it does not rotate; empty: all rotate
};

// Kinds: layer_types, else hybrid_layer_pattern (1: sliding), else sliding_window_pattern (a period
// whose last layer has full attention, or letters L and G to repeat), else
// global_attn_every_n_layers (the first of each has full attention), else full_attention_interval
// (the last of each has; the others linear attention), else what the model_type implies.
//
// Not rotating: zeros of no_rope_layers, else the last of each no_rope_layer_interval; besides,
// layers without attention scores (linear_attention, mamba, conv), and full attention in models
// that leave it without positions (Cohere 2, EXAONE 4 with a window).
absl::StatusOr<LayerList> ReadLayerList(const ConfigDocument& document);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_CONFIG_JSON_LAYERS_H_
