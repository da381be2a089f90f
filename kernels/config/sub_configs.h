// Sub-configs: the configs that a composite config.json holds, each named by its path in the file,
// "vision_config" or "thinker_config.audio_config".
//
// A sub-config is an object that states a model_type, or whose key ends in "_config", in the file
// or in another sub-config. quantization_config and per_layer_config are none.
//
// Threading:  Pure functions; any thread.
// Errors:     INVALID_ARGUMENT only: the text is not JSON; "sub_config: got X, want Y", which lists
//             the sub-configs of the file.
// Limits:     The first 64 sub-configs, down to 4 levels, with names of at most 128 bytes; others
//             are not found.
#ifndef ROPE_KERNELS_CONFIG_SUB_CONFIGS_H_
#define ROPE_KERNELS_CONFIG_SUB_CONFIGS_H_

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace rope::kernels {

struct SubConfig {
  std::string name;          // its path
  bool states_rope = false;  // has rope parameters by itself; those of its own sub-configs are not
  std::string unsupported;   // why the rotation of its model_type is refused; empty: it is not
};

struct SubConfigs {
  // False: only the sub-configs have rope parameters, and one must be chosen.
  bool readable_without_choice = true;
  std::vector<SubConfig> configs;  // a config before its own sub-configs
};

SubConfigs FindSubConfigs(const nlohmann::json& file);
// The same of a text. INVALID_ARGUMENT: the text is not a JSON object.
absl::StatusOr<SubConfigs> FindSubConfigs(std::string_view json);

// The config to read in place of the whole file.
struct ChosenConfig {
  nlohmann::json* config = nullptr;  // in `file`
  std::string path;                  // empty: the file itself
  bool has_sub_configs = false;      // in the file itself
};

// The config that `name` chooses; the file itself if `name` is empty. A text_config selects the
// enclosing config, which is read by its text_config. A sub-config without a model_type, or with
// that of the enclosing config, takes the type of both names if model_types.json has it
// ("qwen2_5_vl" and "vision_config": "qwen2_5_vl_vision").
absl::StatusOr<ChosenConfig> ChooseSubConfig(nlohmann::json& file, std::string_view name);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_SUB_CONFIGS_H_
