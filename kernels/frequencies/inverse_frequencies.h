// The inverse frequencies of a resolved config: the formula of each scaling type. Callers use
// frequencies.h.
//
// Threading:  Pure functions; any thread.
// Precision:  All arithmetic is in Quad (kernels/dtype/quad.h); each result is rounded once to a
//             significand of 64 bits, so that every processor computes the same bits. Eager
//             functions have the float32 arithmetic of Hugging Face's eager code (precision hf),
//             for bit-by-bit comparison with it: each step is in float32, in the order of
//             modeling_rope_utils.py and of the rotary classes. pow, cos and sin are correctly
//             rounded; vector libraries may differ by one unit in the last place.
#ifndef ROPE_KERNELS_FREQUENCIES_INVERSE_FREQUENCIES_H_
#define ROPE_KERNELS_FREQUENCIES_INVERSE_FREQUENCIES_H_

#include <cstdint>
#include <vector>

#include "kernels/config/rope_config.h"
#include "kernels/dtype/dtype.h"

namespace rope::kernels {

// The inverse frequencies [rotary_dim/2] for sequences of `seq_len`, zeros included. REQUIRES:
// `config` is valid and has every field that its type uses (ResolvedRope::config()); seq_len >= 1.
std::vector<long double> InverseFrequencies(const RopeConfig& config, int64_t seq_len);

// The frequencies before scaling, theta^(-2i/rotary_dim), with zeros for pairs that do not rotate.
// REQUIRES: as InverseFrequencies; `config` has no explicit inv_freq.
std::vector<long double> UnscaledFrequencies(const RopeConfig& config);

// cos and sin of one angle. The function that returns it says which factor is included.
struct CosSin {
  double cos = 1;
  double sin = 0;
};

// The result of InverseFrequencies in float32 steps. Types that Hugging Face does not have (ntk,
// yarn by turns, axial, explicit inv_freq) are computed exactly and rounded once.
std::vector<float> EagerFrequencies(const RopeConfig& config, int64_t seq_len);

// cos and sin of float32(position) * inv_freq, rounded to float32, times `multiplier` in float32,
// rounded to `dtype`.
CosSin EagerCosSin(int64_t position, float inv_freq, float multiplier, DType dtype);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_FREQUENCIES_INVERSE_FREQUENCIES_H_
