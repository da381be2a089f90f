// One entry of a config.json: the parameters of one kind of layer. Internal to config_json.
//
// Threading:  Pure functions; any thread.
// Errors:     INVALID_ARGUMENT only: "path: got X, want Y".
#ifndef ROPE_KERNELS_CONFIG_CONFIG_JSON_ENTRY_H_
#define ROPE_KERNELS_CONFIG_CONFIG_JSON_ENTRY_H_

#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/config/config_json_document.h"
#include "kernels/config/layer_config.h"

namespace rope::kernels {

// How the layers of an entry take the file's parameters.
enum class EntryKind {
  kScaled,    // all of them
  kUnscaled,  // the base without the scaling
  kLocal,     // neither: they have a base of their own beside the parameters
};

// Whether sliding layers have a base of their own in a file with one set of parameters:
// rope_local_base_freq, local_rope_theta or swa_rope_theta, or a model_type that implies it.
bool HasLocalBase(const ConfigDocument& document);

// Reads one entry. `parameters` is its object, if it has one.
absl::StatusOr<LayerConfig> ReadEntry(const ConfigDocument& document,
                                      const std::optional<JsonFields>& parameters,
                                      std::string_view layer_type, EntryKind kind);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_CONFIG_JSON_ENTRY_H_
