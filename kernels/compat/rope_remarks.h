// Remarks: what is said of the values of a RopeConfig that is valid.
//
// Threading:  Pure function; any thread.
#ifndef ROPE_KERNELS_COMPAT_ROPE_REMARKS_H_
#define ROPE_KERNELS_COMPAT_ROPE_REMARKS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/config/remark.h"
#include "kernels/config/rope_config.h"

namespace rope::kernels {

// One sentence per setting: a factor below 1, high_freq_factor equal to low_freq_factor, a factor
// that contradicts the length ratio, a field that has no effect, a default that was assumed. What
// engines read differently is in rope_readings.h. `head_dim` as for Validate. REQUIRES:
// Validate(config, head_dim) is OK.
std::vector<Remark> Remarks(const RopeConfig& config,
                            std::optional<int64_t> head_dim = std::nullopt);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_COMPAT_ROPE_REMARKS_H_
