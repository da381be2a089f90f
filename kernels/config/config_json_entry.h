// Reads one entry of a config.json: the parameters of one layer type. Internal to config_json.
//
// Threading:  Pure functions; any thread.
// Errors:     INVALID_ARGUMENT only: "path: got X, want Y".
#ifndef ROPE_KERNELS_CONFIG_CONFIG_JSON_ENTRY_H_
#define ROPE_KERNELS_CONFIG_CONFIG_JSON_ENTRY_H_

#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/config/config_json_document.h"
#include "kernels/config/config_json_layers.h"
#include "kernels/config/layer_config.h"

namespace rope::kernels {

// The part of the file's parameters that applies to a layer type.
enum class EntryKind {
  kScaled,    // all parameters
  kUnscaled,  // the base, without the scaling
  kLocal,     // none: the layers have a separate base outside the parameters
};

// Whether sliding layers have a separate base in a file with one set of parameters: in
// rope_local_base_freq, local_rope_theta or swa_rope_theta, or implied by the model_type.
bool HasLocalBase(const ConfigDocument& document);

// Reads one entry. `parameters` is the entry's JSON object, if there is one.
absl::StatusOr<LayerConfig> ReadEntry(const ConfigDocument& document,
                                      const PerLayerConfig& per_layer,
                                      const std::optional<JsonFields>& parameters,
                                      std::string_view layer_type, EntryKind kind);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_CONFIG_JSON_ENTRY_H_
