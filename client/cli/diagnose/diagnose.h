// Finds the deviations from a config that explain a rotated tensor.
//
// Three kinds are tried: other settings of the config (diagnose_configs.h), other behaviour of the
// rotating code (pairing, direction, rounding and so on), and what the vectors say one by one about
// their positions and their order of channels (explain_cells.h).
//
// Threading:  Pure functions; any thread.
// Limits:     About a second of one core for a full sample of heads of 128 channels.
#ifndef ROPE_CLIENT_CLI_DIAGNOSE_DIAGNOSE_H_
#define ROPE_CLIENT_CLI_DIAGNOSE_DIAGNOSE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "client/cli/diagnose/diagnose_input.h"
#include "client/cli/diagnose/rope_numbers.h"
#include "client/cli/diagnose/trial.h"
#include "kernels/config/rope_config.h"
#include "kernels/dtype/pairing.h"
#include "rope/status.h"

namespace rope::client {

// A config to try instead of the given one.
struct Variant {
  std::vector<std::string> changes;  // in words, at most two; empty: the given config
  RopeNumbers numbers;
};

// Hypotheses of settings and behaviour with at most `changes_max` changes. First come those that
// explain the sample, ordered by the number of changes. If changes_max is kChangesMax, the other
// variants follow, ordered by error. A hypothesis that only adds a change to one that explains
// the sample is omitted. `thin` is a part of `whole`: what explains it is compared with `whole`
// too. REQUIRES: `variants` begins with the given config.
std::vector<Explanation> Explain(const RotatedSample& thin, const RotatedSample& whole,
                                 kernels::Pairing pairing, const std::vector<Variant>& variants,
                                 size_t changes_max);

// What is known of a sample.
struct Diagnosis {
  Explanation as_configured;
  // Everything that explains the sample, without the given config itself: fewest changes first.
  std::vector<Explanation> explanations;
  std::vector<std::string> facts;  // that hold although nothing explains the sample (facts.h)
};

// INVALID_ARGUMENT: the config does not fit to the sample's heads. REQUIRES: seq_len >= 1.
Result<Diagnosis> Diagnose(const RotatedSample& sample, const kernels::RopeConfig& believed,
                           kernels::Pairing pairing, int64_t seq_len);

inline constexpr char kNotRotated[] = "not rotated at all";

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_DIAGNOSE_DIAGNOSE_H_
