// Pairings and defaults that follow from the model_type of a config.json.
//
// Threading:  Immutable; any thread.
#ifndef ROPE_KERNELS_CONFIG_MODEL_TYPES_H_
#define ROPE_KERNELS_CONFIG_MODEL_TYPES_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/dtype/pairing.h"

namespace rope::kernels {

// Pairing of the Hugging Face checkpoints of a model_type. A "_text" suffix is ignored. Unset for
// an unknown type.
std::optional<Pairing> PairingOf(std::string_view model_type);

// Defaults of Hugging Face's code for keys that a model's file omits. Published Gemma 3 files omit
// nearly all of them.
struct ModelDefaults {
  std::optional<double> rope_theta = {};
  std::optional<double> local_base = {};  // the base of the sliding layers
  std::optional<double> partial_rotary_factor = {};
  std::optional<int64_t> head_dim = {};
  std::optional<int64_t> max_position_embeddings = {};
  std::optional<int64_t> num_attention_heads = {};
  std::optional<int64_t> num_key_value_heads = {};
  // Periods in layers (config_json_layers.h).
  std::optional<int64_t> sliding_window_pattern = {};   // 1 full attention, the others sliding
  std::optional<int64_t> full_attention_interval = {};  // 1 full attention, the others linear
  std::optional<int64_t> no_rope_layer_interval = {};   // 1 layer does not rotate
  // The scaling of a file with one set of parameters applies to full-attention layers only.
  bool sliding_layers_unscaled = false;
  // mrope_section is in the order h, w, t: h and w alternate, then t.
  bool mrope_hw_interleaved = false;
};
// All fields are unset for a type without defaults. A "_text" suffix is ignored.
const ModelDefaults& DefaultsOf(std::string_view model_type);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_MODEL_TYPES_H_
