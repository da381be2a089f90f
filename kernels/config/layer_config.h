// LayerConfig: what a config.json says for one layer, and LayerChoice: which layer is asked for.
//
// Threading:  Values.
#ifndef ROPE_KERNELS_CONFIG_LAYER_CONFIG_H_
#define ROPE_KERNELS_CONFIG_LAYER_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/config/rope_config.h"
#include "kernels/dtype/pairing.h"

namespace rope::kernels {

// Picks one of a config's layers; at most one of the two is set.
struct LayerChoice {
  std::optional<int64_t> layer = {};  // index from 0
  std::string layer_type = {};        // for example "full_attention"
};

// What a config.json says for one layer.
struct LayerConfig {
  RopeConfig config;
  std::string layer_type;          // empty where layers do not differ
  bool rotates = true;             // false: such layers return their tensors unchanged
  std::optional<Pairing> pairing;  // what a known model_type uses
  // Unknown keys beside the rope parameters, and what was assumed. rope_warnings.h says the rest.
  std::vector<std::string> warnings;
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_LAYER_CONFIG_H_
