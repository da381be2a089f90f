// Presets: named models with a built-in rotary embedding. They are data, one entry per model, in
// presets.json.
//
// Threading:  Immutable; any thread.
#ifndef ROPE_KERNELS_CONFIG_PRESETS_H_
#define ROPE_KERNELS_CONFIG_PRESETS_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "kernels/dtype/dtype.h"

namespace rope::kernels {

// A preset is the rope part of the model's published config.json. The same code reads it as reads a
// user's config.json.
struct Preset {
  std::string name;  // for example "llama-3.1-8b"
  std::string config_json;
  Pairing pairing;  // of its model_type
  // The repositories of the Hugging Face hub whose config.json says the same: OWNER/NAME.
  std::vector<std::string> hub_ids;
};

// All presets, sorted by name.
absl::Span<const Preset> Presets();

// No preset has a longer name.
inline constexpr size_t kPresetNameBytesMax = 128;

// The preset that `name` means: its name, one of its hub ids, or such an id without the owner.
// Upper and lower case are equal. Null: none.
const Preset* FindPreset(std::string_view name);

// The preset that was probably meant, or several with "or". Empty: none is near. Reads the first
// kPresetNameBytesMax bytes of `name`.
std::string NearestPreset(std::string_view name);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_PRESETS_H_
