// The data files of kernels, as the build embeds them (kernels/CMakeLists.txt).
//
// Threading:  Immutable; any thread.
#ifndef ROPE_KERNELS_CONFIG_EMBEDDED_DATA_H_
#define ROPE_KERNELS_CONFIG_EMBEDDED_DATA_H_

#include <string_view>

namespace rope::kernels {

extern const std::string_view kEnginesJson;     // compat/engines.json
extern const std::string_view kKeysJson;        // keys.json
extern const std::string_view kModelTypesJson;  // model_types.json
extern const std::string_view kPresetsJson;     // presets.json
extern const std::string_view kRegistriesJson;  // registries.json
extern const std::string_view kRulesJson;       // rules.json

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_EMBEDDED_DATA_H_
