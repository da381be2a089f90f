// Reads the type of each layer of a GGUF file, and which layers rotate. Internal to gguf_config.
//
// Threading:  Pure functions; any thread.
// Errors:     INVALID_ARGUMENT only: "key: got X, want Y".
// Limits:     65536 layers.
#ifndef ROPE_KERNELS_CONFIG_GGUF_LAYERS_H_
#define ROPE_KERNELS_CONFIG_GGUF_LAYERS_H_

#include "absl/status/statusor.h"
#include "kernels/config/config_json_layers.h"
#include "kernels/config/gguf_fields.h"

namespace rope::kernels {

// The count is block_count without nextn_predict_layers, which draft tokens and are not part of
// config.json's num_hidden_layers. Types and layers without rotation follow from, in this order:
//   attention.sliding_window_pattern   a list, true for a sliding layer, or a period
//   the architecture                   (gguf_architectures.h)
//   attention.recurrent_layers, full_attention_interval    linear attention, which does not rotate
// These layers do not rotate either: false in attention.rope_pattern; 0 in a list of
// attention.head_count_kv, which means no attention; all layers of Granite 4 and
// its hybrids if rope.scaling.finetuned is false.
absl::StatusOr<LayerList> ReadGgufLayers(const GgufFields& fields);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_GGUF_LAYERS_H_
