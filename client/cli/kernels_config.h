// Configs and statuses of the kernels as those of the client library, and back.
//
// Threading:  Pure functions; any thread.
#ifndef ROPE_CLIENT_CLI_KERNELS_CONFIG_H_
#define ROPE_CLIENT_CLI_KERNELS_CONFIG_H_

#include <optional>

#include "absl/status/status.h"
#include "kernels/compat/rope_readings.h"
#include "kernels/config/rope_config.h"
#include "kernels/dtype/pairing.h"
#include "rope/config.h"
#include "rope/status.h"

namespace rope::client {

std::optional<kernels::Pairing> KernelsPairing(Pairing pairing);
kernels::Compat KernelsCompat(Compat compat);

// Every field but the precision, which the client library has in RopeSpec. INVALID_ARGUMENT: an
// unknown rope_type, or a mrope_section that has not three counts.
Result<kernels::RopeConfig> KernelsConfigOf(const RopeConfig& config);
RopeConfig ClientConfigOf(const kernels::RopeConfig& config);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_KERNELS_CONFIG_H_
