// What a config.json's model_type says that the file itself leaves out.
//
// Threading:  Immutable; any thread.
#ifndef ROPE_KERNELS_MODEL_TYPES_H_
#define ROPE_KERNELS_MODEL_TYPES_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "kernels/dtype.h"

namespace rope::kernels {

// Pairing of the Hugging Face checkpoints of a model_type; a "_text" ending is ignored. Unset for a
// type that is not known.
std::optional<Pairing> PairingOf(std::string_view model_type);

// What Hugging Face assumes where the file of such a model does not say it. Published Gemma 3
// files say nearly nothing.
struct ModelDefaults {
  double rope_theta;
  double rope_local_base_freq;  // base of the sliding layers
  int64_t head_dim;
  int64_t num_attention_heads;
  int64_t num_key_value_heads;
  int64_t sliding_window_pattern;  // each so many layers one has full attention
};
// Null where the general defaults hold.
const ModelDefaults* DefaultsOf(std::string_view model_type);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_MODEL_TYPES_H_
