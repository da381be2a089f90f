// RopeConfig, the struct of client/include/rope/config.h, for the kernels. config_json.h reads it
// from a config.json, rope_config.h checks it, and frequencies.h resolves it to numbers.
//
// Threading:  A value; const access from any thread. Pure functions; any thread.
// Errors:     INVALID_ARGUMENT only, "field: got X, want Y", the field spelt as in config.json.
// Limits:     head_dim and rotary_dim up to 65536, lengths up to 2^53, attention_factor up to the
//             largest float32.
#ifndef ROPE_KERNELS_CONFIG_ROPE_CONFIG_H_
#define ROPE_KERNELS_CONFIG_ROPE_CONFIG_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "kernels/dtype/quad.h"
#include "proto/rope_type.h"
#include "rope/config.h"

namespace rope::kernels {

using proto::ParseRopeType;
using rope::Compat;
using rope::LongropeBranch;
using rope::Mrope;
using rope::Precision;
using rope::RopeConfig;
using rope::RopeType;
using rope::SeqLenPolicy;
using rope::XPos;
using rope::YarnRamp;

// Maximum of head_dim and of rotary_dim; bounds every list of frequencies.
inline constexpr int64_t kHeadDimMax = 65536;

// Axis (0 t, 1 h, 2 w) of frequency `index`.
int AxisOf(const Mrope& mrope, int64_t index);

// The parts of the scaling formulas that validation, resolution and warnings share.
//
// Precision:  Formulas are computed in Quad and rounded once, so that every processor gives the
//             same bits (kernels/dtype/quad.h).

// Number of rotated channels: rotary_dim, else head_dim * partial_rotary_factor in double
// arithmetic, truncated, 0 to 2^53. For proportional it is head_dim. Unset if head_dim is needed
// and not given. The config may be invalid.
std::optional<int64_t> RotaryDim(const RopeConfig& config, std::optional<int64_t> head_dim);

// original_max_position_embeddings, else max_position_embeddings.
std::optional<int64_t> OriginalLength(const RopeConfig& config);

// max_position_embeddings / original_max_position_embeddings, if the config has both.
std::optional<double> LengthRatio(const RopeConfig& config);

// Whether the formulas of the config's type use `factor`. dynamic with alpha does not.
bool ReadsFactor(const RopeConfig& config);

// Whether attention_factor has an effect: it replaces the computed factor of yarn and longrope, and
// it is the factor with explicit inv_freq.
bool ReadsAttentionFactor(const RopeConfig& config);

// `factor` with the default of the config's type: the length ratio for yarn and longrope, 1 for
// proportional.
std::optional<double> EffectiveFactor(const RopeConfig& config);

// yarn's beta_fast and beta_slow with their defaults. 0 counts as absent, as in Hugging Face's
// code.
double BetaFast(const RopeConfig& config);
double BetaSlow(const RopeConfig& config);

// yarn's magnitude: attn_factor g(mscale) / g(all_dim), where g(m) is 0.1 m ln(factor) + 1, or 1 if
// factor <= 1.
double YarnMagnitude(double mscale, double factor, double all_dim = 0, double attn_factor = 1);

// The edges of yarn's ramp, as frequency indices: kept up to `low`, divided from `high` on. Of 64
// bits.
struct YarnEdges {
  long double low = 0;
  long double high = 0;
};
// REQUIRES: a valid yarn config.
YarnEdges YarnRampEdges(const RopeConfig& config, int64_t rotary_dim, bool truncate);

// The indices whose frequencies make `fast` and `slow` turns over the original length, neither
// rounded nor clamped to the columns. REQUIRES: a valid config of a
// type that has a ramp.
YarnEdges TurnEdges(const RopeConfig& config, int64_t rotary_dim, double fast, double slow);

// The multiplier on cos and sin. With `ignore_explicit` it is computed as if attention_factor were
// unset. REQUIRES: a valid config.
double AttentionFactor(const RopeConfig& config, bool ignore_explicit = false);

// Whether longrope uses long_factor at `seq_len`. REQUIRES: a valid longrope config.
bool TakesLongFactors(const RopeConfig& config, int64_t seq_len);

// dynamic's base for `seq_len`: with alpha, theta * alpha^(d/(d-2)) at every length (Hunyuan).
// REQUIRES: a valid dynamic config.
Quad DynamicTheta(const RopeConfig& config, int64_t rotary_dim, int64_t seq_len);

// Checks every rule that does not depend on a tensor: numbers are finite and in range, fields that
// the type requires are set, and, if rotary_dim is known, lists and sections have the right length.
// `head_dim` is used if the config has none.
absl::Status Validate(const RopeConfig& config, std::optional<int64_t> head_dim = std::nullopt);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_ROPE_CONFIG_H_
