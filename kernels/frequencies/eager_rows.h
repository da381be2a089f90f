// Precision hf: the float32 arithmetic of Hugging Face's eager code, for bit-by-bit comparison with
// it. Callers use frequencies.h.
//
// Threading:  Pure functions; any thread.
// Precision:  Each step is in float32, in the order of modeling_rope_utils.py and of the rotary
//             classes. pow, cos and sin are correctly rounded; vector libraries may differ by one
//             unit in the last place.
#ifndef ROPE_KERNELS_FREQUENCIES_EAGER_ROWS_H_
#define ROPE_KERNELS_FREQUENCIES_EAGER_ROWS_H_

#include <cstdint>
#include <vector>

#include "kernels/config/rope_config.h"
#include "kernels/dtype/dtype.h"

namespace rope::kernels {

// cos and sin of one angle. The function that returns it says which factor is included.
struct CosSin {
  double cos = 1;
  double sin = 0;
};

// The result of InverseFrequencies (inverse_frequencies.h) in float32 steps. Types that Hugging
// Face does not have (ntk, yarn by turns, axial, explicit inv_freq) are computed exactly and
// rounded once.
std::vector<float> EagerFrequencies(const RopeConfig& config, int64_t head_dim, int64_t rotary_dim,
                                    int64_t seq_len);

// cos and sin of float32(position) * inv_freq, rounded to float32, times `multiplier` in float32,
// rounded to `dtype`.
CosSin EagerCosSin(int64_t position, float inv_freq, float multiplier, DType dtype);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_FREQUENCIES_EAGER_ROWS_H_
