// Validate: the rules of a RopeConfig.
//
// Threading:  Pure; any thread.
// Errors:     INVALID_ARGUMENT only, "field: got X, want Y", the field spelt as in config.json.
#ifndef ROPE_KERNELS_CONFIG_VALIDATE_CONFIG_H_
#define ROPE_KERNELS_CONFIG_VALIDATE_CONFIG_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "kernels/config/rope_config.h"

namespace rope::kernels {

// Checks every rule that holds whatever the tensor: numbers finite and in range, what the type
// requires is there, list lengths and sections where rotary_dim is known. `head_dim` is taken where
// the config has none.
absl::Status Validate(const RopeConfig& config, std::optional<int64_t> head_dim = std::nullopt);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_VALIDATE_CONFIG_H_
