// Presets: named models with a built-in rotary embedding. They are data, one entry per model, in
// presets.json.
//
// Threading:  Immutable; any thread.
#ifndef ROPE_KERNELS_CONFIG_PRESETS_H_
#define ROPE_KERNELS_CONFIG_PRESETS_H_

#include <string>

#include "absl/types/span.h"
#include "kernels/dtype/pairing.h"

namespace rope::kernels {

// A preset is the rope part of the model's published config.json. The same code reads it as reads a
// user's config.json.
struct Preset {
  std::string name;  // for example "llama-3.1-8b"
  std::string config_json;
  Pairing pairing;     // of its model_type
  std::string source;  // the project and version that its numbers were read from
};

// All presets, sorted by name.
absl::Span<const Preset> Presets();

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_PRESETS_H_
