// What a config.json's model_type says that the file itself leaves out.
//
// Threading:  Immutable; any thread.
#ifndef ROPE_KERNELS_CONFIG_MODEL_TYPES_H_
#define ROPE_KERNELS_CONFIG_MODEL_TYPES_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/dtype/pairing.h"

namespace rope::kernels {

// Pairing of the Hugging Face checkpoints of a model_type; a "_text" ending is ignored. Unset for a
// type that is not known.
std::optional<Pairing> PairingOf(std::string_view model_type);

// What Hugging Face assumes where the file of such a model does not say it. Published Gemma 3
// files say nearly nothing.
struct ModelDefaults {
  std::optional<double> rope_theta = {};
  std::optional<double> local_base = {};  // base of the sliding layers
  std::optional<double> partial_rotary_factor = {};
  std::optional<int64_t> head_dim = {};
  std::optional<int64_t> max_position_embeddings = {};
  std::optional<int64_t> num_attention_heads = {};
  std::optional<int64_t> num_key_value_heads = {};
  std::optional<int64_t> sliding_window_pattern = {};   // one in so many layers has full attention
  std::optional<int64_t> full_attention_interval = {};  // the same, the others linear attention
  std::optional<int64_t> no_rope_layer_interval = {};   // one in so many layers does not rotate
  // The scaling of a file with one set of parameters is for its full-attention layers alone.
  bool sliding_layers_unscaled = false;
  // mrope_section holds h, w, t: the first two in turn, then t.
  bool mrope_hw_interleaved = false;
};
// All unset where the general defaults hold; a "_text" ending is ignored.
const ModelDefaults& DefaultsOf(std::string_view model_type);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_MODEL_TYPES_H_
