// Candidate configs that may have been used instead of the given one.
//
// Threading:  Pure functions; any thread.
// Limits:     At most kConfigChangesMax configs.
#ifndef ROPE_CLIENT_CLI_DIAGNOSE_DIAGNOSE_CONFIGS_H_
#define ROPE_CLIENT_CLI_DIAGNOSE_DIAGNOSE_CONFIGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/diagnose/diagnose_input.h"
#include "kernels/config/rope_config.h"
#include "kernels/dtype/pairing.h"

namespace rope::client {

inline constexpr size_t kConfigChangesMax = 48;

struct ConfigChange {
  std::string words;  // for example "theta 500000"
  kernels::RopeConfig config;
};

// `believed` with one change each: theta, scaling, rotated channels. Values estimated from the
// tensors are among the candidates. Some of them may not be valid. REQUIRES: `believed` is resolved
// (RopeNumbers::config) and rotates 2 * `pairs` channels.
std::vector<ConfigChange> ConfigChanges(const kernels::RopeConfig& believed, size_t pairs,
                                        kernels::Pairing pairing, const RotatedSample& sample);

// Estimates the frequencies from the tensors, if the sample has tokens at neighbouring positions.
// The rotated channels begin at `window`.
struct FrequencyEstimate {
  double theta = 0;   // 0: could not be estimated
  double factor = 1;  // divisor of the first frequency
};
std::optional<FrequencyEstimate> EstimateFrequencies(const RotatedSample& sample,
                                                     kernels::Pairing pairing, size_t window,
                                                     size_t pairs);

// Number of channels from `window` to the last one that changed, rounded up to even; 0: none did.
int64_t EstimateRotaryDim(const RotatedSample& sample, int64_t window);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_DIAGNOSE_DIAGNOSE_CONFIGS_H_
