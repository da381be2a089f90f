// EngineReadings: how engines read an embedding differently, as findings. The one place that knows
// what kernels::Readings returns.
//
// Threading:  Pure functions; any thread.
#ifndef ROPE_CLIENT_CLI_LINT_ENGINE_READINGS_H_
#define ROPE_CLIENT_CLI_LINT_ENGINE_READINGS_H_

#include <optional>
#include <string>
#include <vector>

#include "client/cli/lint/finding.h"
#include "kernels/describe.h"
#include "kernels/frequencies/frequencies.h"
#include "rope/status.h"

namespace rope::client {

// The engines whose readings are known.
std::vector<std::string> EngineNames();

// INVALID_ARGUMENT: the engine has no versions of that form. REQUIRES: the engine is known, or the
// version is empty.
Status CheckVersion(const EngineFilter& filter);

// What to say of a version that was never compared; unset: it was, or none is asked for.
std::optional<Finding> VersionFinding(const EngineFilter& filter);

// The readings that differ at length 1 or at the model's own length, one for each engine and
// version that passes `filter`. Field, line and layer types are not set.
std::vector<Finding> EngineReadings(const kernels::LayerRope& rope,
                                    const kernels::ResolvedRope& resolved,
                                    const EngineFilter& filter);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_LINT_ENGINE_READINGS_H_
