// Diff: how the rotations of two configs differ, for each layer type.
//
// Threading:  Pure functions; any thread.
// Errors:     INVALID_ARGUMENT: a config is refused; the message names its field.
// Limits:     As kernels::ModelConfig; any bytes are accepted. Scales of xPos are compared as
//             settings: the search for a first position is left out.
#ifndef ROPE_CLIENT_CLI_LINT_DIFF_H_
#define ROPE_CLIENT_CLI_LINT_DIFF_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/cli/arguments.h"
#include "kernels/compat/rope_readings.h"
#include "kernels/config/config_json.h"
#include "rope/status.h"

namespace rope::client {

// One side of a comparison.
struct DiffSide {
  absl::StatusOr<kernels::ModelConfig> config;
  kernels::EngineVersion engine = {};  // whose reading; without a name: as the config is written
};

// An array with an object for each layer type, as `ropectl diff --json` prints it. Where one config
// has a single type for all layers, it is compared with each type of the other. A config whose
// numbers follow the length is compared at length 1 and at the larger max_position_embeddings.
// `error` is that of cos and sin, above 0. With an engine it decides whether the rotations are
// equal; without one every bit does.
// INVALID_ARGUMENT: a config; an engine that has no such rotation, or was not checked.
Result<Json> Diff(const DiffSide& a, const DiffSide& b, double error);
// The side of the text of a config.json, or of its sub-config of that path. INVALID_ARGUMENT, of
// "engine": kernels::ParseEngine; empty: no engine.
Result<DiffSide> SideOf(const std::string& text, const std::string& sub_config,
                        const std::string& engine);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_LINT_DIFF_H_
