// The inverse frequencies of a resolved config: the formula of each scaling type. frequencies.h is
// the way in.
//
// Threading:  Pure functions; any thread.
// Precision:  long double throughout.
#ifndef ROPE_KERNELS_FREQUENCIES_INVERSE_FREQUENCIES_H_
#define ROPE_KERNELS_FREQUENCIES_INVERSE_FREQUENCIES_H_

#include <cstdint>
#include <vector>

#include "kernels/config/rope_config.h"

namespace rope::kernels {

// [rotary_dim/2], zeros included, for sequences of `seq_len`. REQUIRES: `config` is valid and what
// its type reads is set (ResolvedRope::config()); seq_len >= 1.
std::vector<long double> InverseFrequencies(const RopeConfig& config, int64_t head_dim,
                                            int64_t rotary_dim, int64_t seq_len);

// theta^(-2i/rotary_dim): what the scaling of `config` starts from, zeros where it rotates nothing.
// Not for explicit inv_freq, which start from nothing else. REQUIRES: as InverseFrequencies.
std::vector<long double> UnscaledFrequencies(const RopeConfig& config, int64_t head_dim,
                                             int64_t rotary_dim);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_FREQUENCIES_INVERSE_FREQUENCIES_H_
