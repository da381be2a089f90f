// Completes a config.json with what its model_type implies. Internal to config_json.
//
// Threading:  Pure functions; any thread.
#ifndef ROPE_KERNELS_CONFIG_MODEL_DEFAULTS_H_
#define ROPE_KERNELS_CONFIG_MODEL_DEFAULTS_H_

#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/config/remark.h"

namespace rope::kernels {

// Adds keys to the model of `file` (its text_config, or the file itself): keys that its config
// class spells differently get their usual names, and absent keys the class's defaults. Sizes are
// added to complete files only, which is what Hugging Face writes, and to sub-configs; a fragment
// without a head_dim takes the tensors'. Returns a note for each default that decides the
// rotation.
std::vector<Remark> CompleteModel(nlohmann::json& file, bool is_sub_config);

// Whether `config` has a key of rope parameters. A null value counts as absent.
bool StatesParameters(const nlohmann::json& config);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_MODEL_DEFAULTS_H_
