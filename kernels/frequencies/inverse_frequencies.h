// The inverse frequencies of a resolved config: the formula of each scaling type. Callers use
// frequencies.h.
//
// Threading:  Pure functions; any thread.
// Precision:  All arithmetic is in Quad (kernels/dtype/quad.h); each result is rounded once to a
//             significand of 64 bits, so that every processor computes the same bits.
#ifndef ROPE_KERNELS_FREQUENCIES_INVERSE_FREQUENCIES_H_
#define ROPE_KERNELS_FREQUENCIES_INVERSE_FREQUENCIES_H_

#include <cstdint>
#include <vector>

#include "kernels/config/rope_config.h"

namespace rope::kernels {

// The inverse frequencies [rotary_dim/2] for sequences of `seq_len`, zeros included. REQUIRES:
// `config` is valid and has every field that its type uses (ResolvedRope::config()); seq_len >= 1.
std::vector<long double> InverseFrequencies(const RopeConfig& config, int64_t head_dim,
                                            int64_t rotary_dim, int64_t seq_len);

// The frequencies before scaling, theta^(-2i/rotary_dim), with zeros for pairs that do not rotate.
// REQUIRES: as InverseFrequencies; `config` has no explicit inv_freq.
std::vector<long double> UnscaledFrequencies(const RopeConfig& config, int64_t head_dim,
                                             int64_t rotary_dim);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_FREQUENCIES_INVERSE_FREQUENCIES_H_
