// Precision hf: the float32 arithmetic of Hugging Face's eager code, for those who compare with it
// digit by digit. frequencies.h is the way in.
//
// Threading:  Pure functions; any thread.
// Precision:  Each step in float32, in the order of modeling_rope_utils.py and of the rotary
//             classes; pow, cos and sin correctly rounded, where vector libraries may be a unit in
//             the last place away.
#ifndef ROPE_KERNELS_FREQUENCIES_EAGER_ROWS_H_
#define ROPE_KERNELS_FREQUENCIES_EAGER_ROWS_H_

#include <cstdint>
#include <vector>

#include "kernels/config/rope_config.h"
#include "kernels/dtype/dtype.h"
#include "kernels/frequencies/cos_sin.h"

namespace rope::kernels {

// As InverseFrequencies (inverse_frequencies.h), in float32. Types that Hugging Face does not have
// (ntk, yarn by turns, axial, explicit numbers) are rounded once.
std::vector<float> EagerFrequencies(const RopeConfig& config, int64_t head_dim, int64_t rotary_dim,
                                    int64_t seq_len);

// cos and sin of float32(position) * inv_freq, rounded to float32, times `multiplier` in float32,
// rounded to `dtype`.
CosSin EagerCosSin(int64_t position, float inv_freq, float multiplier, DType dtype);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_FREQUENCIES_EAGER_ROWS_H_
