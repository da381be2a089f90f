// Presets: named models with a built-in rotary embedding.
//
// Threading:  Immutable; any thread.
#ifndef ROPE_KERNELS_CONFIG_PRESETS_H_
#define ROPE_KERNELS_CONFIG_PRESETS_H_

#include <cstdint>
#include <string_view>

#include "absl/types/span.h"
#include "kernels/dtype/pairing.h"

namespace rope::kernels {

// A preset is the rope part of the model's published config.json. The same code reads it as reads a
// user's config.json.
struct Preset {
  std::string_view name;  // for example "llama-3.1-8b"
  std::string_view config_json;
  Pairing pairing;  // the Hugging Face checkpoint's
};

// All presets, sorted by name.
absl::Span<const Preset> Presets();

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_PRESETS_H_
