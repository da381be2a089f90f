// Reads the position axes of a config.json: mrope (t, h, w) and axial grids (h, w). Internal to
// config_json.
//
// Threading:  Pure functions; any thread.
// Errors:     INVALID_ARGUMENT only: "path: got X, want Y".
#ifndef ROPE_KERNELS_CONFIG_CONFIG_JSON_ENTRY_H_
#define ROPE_KERNELS_CONFIG_CONFIG_JSON_ENTRY_H_

#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/config/config_json_document.h"
#include "kernels/config/config_json_layers.h"
#include "kernels/config/layer_config.h"
#include "kernels/config/rope_config.h"

namespace rope::kernels {

// Hugging Face's rope_type of image patches. It is default with two axes.
inline constexpr std::string_view kAxialType = "axial";

// Sets config.mrope, and the frequencies of an axial grid. Leaves them unset for one axis.
// REQUIRES: theta, head_dim and rotary_dim of `config` are read.
absl::Status ReadAxes(const ConfigDocument& document, const JsonFields& parameters,
                      RopeConfig& config);

// Reads one entry of a config.json: the parameters of one layer type. Internal to config_json.
//
// Threading:  Pure functions; any thread.
// Errors:     INVALID_ARGUMENT only: "path: got X, want Y".

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
