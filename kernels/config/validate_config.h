// Validate: checks a RopeConfig.
//
// Threading:  Pure functions; any thread.
// Errors:     INVALID_ARGUMENT only, "field: got X, want Y", the field spelt as in config.json.
#ifndef ROPE_KERNELS_CONFIG_VALIDATE_CONFIG_H_
#define ROPE_KERNELS_CONFIG_VALIDATE_CONFIG_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "kernels/config/rope_config.h"

namespace rope::kernels {

// Checks every rule that does not depend on a tensor: numbers are finite and in range, fields that
// the type requires are set, and, if rotary_dim is known, lists and sections have the right length.
// `head_dim` is used if the config has none.
absl::Status Validate(const RopeConfig& config, std::optional<int64_t> head_dim = std::nullopt);

// Whether a config of the type needs a length before scaling.
bool RequiresOriginalLength(RopeType type);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_VALIDATE_CONFIG_H_
