// Warnings: settings of a RopeConfig that are valid but probably a mistake.
//
// Threading:  Pure function; any thread.
#ifndef ROPE_KERNELS_COMPAT_ROPE_WARNINGS_H_
#define ROPE_KERNELS_COMPAT_ROPE_WARNINGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/config/rope_config.h"

namespace rope::kernels {

// One sentence per doubtful setting: a factor below 1, high_freq_factor equal to low_freq_factor, a
// factor that contradicts the length ratio, a field that has no effect, or a setting that
// implementations read differently. `head_dim` as for Validate. REQUIRES: Validate(config,
// head_dim) is OK.
std::vector<std::string> Warnings(const RopeConfig& config,
                                  std::optional<int64_t> head_dim = std::nullopt);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_COMPAT_ROPE_WARNINGS_H_
