// Reads the scaling of a GGUF file: the type, its numbers, and the tensors that divide frequencies.
// Internal to gguf_config.
//
// Threading:  Pure functions; any thread.
// Errors:     INVALID_ARGUMENT only: "key: got X, want Y".
#ifndef ROPE_KERNELS_CONFIG_GGUF_SCALING_H_
#define ROPE_KERNELS_CONFIG_GGUF_SCALING_H_

#include "absl/status/status.h"
#include "kernels/config/gguf_fields.h"
#include "kernels/config/layer_config.h"

namespace rope::kernels {

// Sets the scaling of `entry`, which has its base, dimensions and lengths.
//   rope_factors_long and _short   longrope, whatever type the file names
//   rope_freqs                     explicit inv_freq: theta^(-2i/d) divided by number i. The
//                                  conversion writes 1e30 for a pair that does not rotate; from
//                                  there on the frequency is 0.
//   otherwise                      rope.scaling.type, which is linear if it is absent
absl::Status ReadGgufScaling(const GgufFields& fields, LayerConfig& entry);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_GGUF_SCALING_H_
