// The configs that somebody may have had in place of the believed one.
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
#include "rope/config.h"

namespace rope::client {

inline constexpr size_t kConfigChangesMax = 48;

struct ConfigChange {
  std::string words;  // for example "theta 500000"
  RopeConfig config;
};

// `believed` with one thing changed: theta, scaling, rotated channels. What the tensors themselves
// say is among the candidates. Some may be configs that the server refuses. REQUIRES: `believed` is
// resolved (DescribeReply::config) and rotates 2 * `pairs` channels.
std::vector<ConfigChange> ConfigChanges(const RopeConfig& believed, size_t pairs, Pairing pairing,
                                        const RotatedSample& sample);

// What the tensors say of their frequencies, if tokens at neighbouring positions are among them.
// The rotated channels begin at `window`.
struct FrequencyEstimate {
  double theta = 0;   // 0: they do not say it
  double factor = 1;  // that divides the first frequency
};
std::optional<FrequencyEstimate> EstimateFrequencies(const RotatedSample& sample, Pairing pairing,
                                                     size_t window, size_t pairs);

// Channels from `window` to the last one that changed, rounded up to an even number; 0: none did.
int64_t EstimateRotaryDim(const RotatedSample& sample, int64_t window);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_DIAGNOSE_DIAGNOSE_CONFIGS_H_
