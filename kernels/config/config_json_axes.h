// Reads the position axes of a config.json: mrope (t, h, w) and axial grids (h, w). Internal to
// config_json.
//
// Threading:  Pure functions; any thread.
// Errors:     INVALID_ARGUMENT only: "path: got X, want Y".
#ifndef ROPE_KERNELS_CONFIG_CONFIG_JSON_AXES_H_
#define ROPE_KERNELS_CONFIG_CONFIG_JSON_AXES_H_

#include <string_view>

#include "absl/status/status.h"
#include "kernels/config/config_json_document.h"
#include "kernels/config/rope_config.h"

namespace rope::kernels {

// Hugging Face's rope_type of image patches. It is default with two axes.
inline constexpr std::string_view kAxialType = "axial";

// Sets config.mrope, and the frequencies of an axial grid. Leaves them unset for one axis.
// REQUIRES: theta, head_dim and rotary_dim of `config` are read.
absl::Status ReadAxes(const ConfigDocument& document, const JsonFields& parameters,
                      RopeConfig& config);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_CONFIG_JSON_AXES_H_
