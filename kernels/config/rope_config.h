// RopeConfig: one rotary embedding as a user states it, with the field names of Hugging Face's
// config.json. config_json.h reads it from a config.json, validate_config.h checks it, and
// frequencies.h resolves it to numbers.
//
// Threading:  A value; const access from any thread.
// Errors:     INVALID_ARGUMENT only, "field: got X, want Y", the field spelt as in config.json.
// Limits:     head_dim and rotary_dim up to 65536, lengths up to 2^53, attention_factor up to the
//             largest float32.
#ifndef ROPE_KERNELS_CONFIG_ROPE_CONFIG_H_
#define ROPE_KERNELS_CONFIG_ROPE_CONFIG_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rope::kernels {

enum class RopeType { kDefault, kLinear, kDynamic, kNtk, kYarn, kLongrope, kLlama3, kProportional };

// The name in config.json: "default", "linear", ...
std::string_view Name(RopeType type);

// Parses a name. "su" is longrope; "mrope" and "ernie_3d" are default. INVALID_ARGUMENT lists the
// valid names. For a known type of another implementation it gives the equivalent instead.
absl::StatusOr<RopeType> ParseRopeType(std::string_view name);

// Three-axis positions (t, h, w), and the axis that each frequency uses.
struct Mrope {
  enum class Layout {
    kSections,     // the first section[0] frequencies use t, the next section[1] h, the rest w
    kInterleaved,  // j % 3 == 1 and j < 3*section[1]: h; j % 3 == 2 and j < 3*section[2]: w; else t
    kHwInterleaved,  // h and w alternate, the same number of each, then t (Ernie 4.5 VL)
    // Blocks as in kSections, but the frequencies of each axis start over: an axis with n of them
    // has theta^(-2i/(2n)) for i from 0. With two axes (section[0] = 0) this is the rotation of
    // image patches in Qwen2-VL's vision tower, with three the rotation in video transformers.
    kAxial,
  };
  std::array<int64_t, 3> section = {};  // counts of frequencies (t, h, w), sum rotary_dim/2
  Layout layout = Layout::kSections;
  // The axis (0 t, 1 h, 2 w) of each frequency, rotary_dim/2 entries, in place of section and
  // layout; for orders that no layout has.
  std::vector<int8_t> axes = {};

  // Axis (0 t, 1 h, 2 w) of frequency `index`.
  int Axis(int64_t index) const;
  bool operator==(const Mrope&) const = default;
};

// The measure in which YaRN's ramp is linear between its edges.
enum class YarnRamp {
  kIndex,  // linear in the frequency's index
  // Linear in turns over the original length, L*f/2pi, from beta_slow to beta_fast: the ramp of
  // "NTK-by-parts" in Peng et al., "YaRN". It equals llama3's ramp with beta_slow and beta_fast as
  // low_freq_factor and high_freq_factor.
  kTurns,
};

// The list of divisors that longrope uses.
enum class LongropeBranch { kShort, kLong };

// The length that dynamic and longrope use.
enum class SeqLenPolicy {
  kSequence,  // each sequence uses its own length
  kBatch,     // all sequences of a call use the longest length
};

// The arithmetic of angles and rows.
enum class Precision {
  kExact,        // angles in long double and double, rows rounded once to float32
  kHuggingFace,  // the roundings of its eager code: see EagerFrequencies and Frequencies::eager
};

// xPos, the extrapolatable position embedding, with a fixed centre. Rows of q are multiplied by
// zeta_i^((p - centre) / scale_base) and rows of k by its inverse, where zeta_i = (2i + 0.4 d) /
// (1.4 d) and d = rotary_dim. Source: Sun et al., "A Length-Extrapolatable Transformer", in the
// form of FlashAttention's rotary layer. That layer uses half of the current length as the centre.
struct XPos {
  double scale_base = 512;  // positions, >= 1
  int64_t centre = 0;       // the position with scale 1, 0 to 2^30
  bool operator==(const XPos&) const = default;
};

// Maximum of head_dim and of rotary_dim; bounds every list of frequencies.
inline constexpr int64_t kHeadDimMax = 65536;

// The comment of a field gives the types that use it, its range, and its default. An unset field
// has this default.
struct RopeConfig {
  RopeType rope_type = RopeType::kDefault;
  double rope_theta = 10000;               // base, finite, > 0
  std::optional<int64_t> head_dim = {};    // channels of a head, >= 2
  std::optional<int64_t> rotary_dim = {};  // even, 2..head_dim; head_dim * partial_rotary_factor
  std::optional<double> partial_rotary_factor = {};     // (0, 1]; 1
  std::optional<int64_t> max_position_embeddings = {};  // positions, >= 1
  // Positions, >= 1; max_position_embeddings.
  std::optional<int64_t> original_max_position_embeddings = {};
  std::optional<double> factor = {};            // > 0; yarn and longrope: the ratio of the lengths
  std::optional<double> attention_factor = {};  // >= 0; replaces the computed one
  std::optional<double> mscale = {};            // yarn
  std::optional<double> mscale_all_dim = {};    // yarn
  std::optional<double> beta_fast = {};         // yarn; 32
  std::optional<double> beta_slow = {};         // yarn; 1
  std::optional<bool> truncate = {};            // yarn; true
  std::optional<double> low_freq_factor = {};   // llama3
  std::optional<double> high_freq_factor = {};  // llama3
  std::vector<double> short_factor = {};        // longrope, rotary_dim/2
  std::vector<double> long_factor = {};         // longrope, rotary_dim/2
  std::optional<Mrope> mrope = {};
  // First rotated channel, >= 0; 0. Channels before and after the window pass through. If it is
  // set, heads may have more channels than head_dim, and the window may end past head_dim.
  std::optional<int64_t> rotary_offset = {};
  std::optional<double> attn_factor = {};  // yarn; >= 0, multiplies the computed attention factor
  std::optional<YarnRamp> ramp = {};       // yarn; index
  std::optional<LongropeBranch> longrope_branch = {};  // longrope; by the length
  // dynamic; > 0, theta * alpha^(d/(d-2)) at every length. `factor` is then not used.
  std::optional<double> alpha = {};
  // ntk; >= 0. Frequency i is divided by exp(a (i+1)^mixed_b), a = ln(factor) / (d/2)^mixed_b.
  std::optional<double> mixed_b = {};
  std::optional<XPos> xpos = {};
  // default; rotary_dim/2 frequencies, each >= 0, instead of those of rope_theta. attention_factor
  // still applies.
  std::vector<double> inv_freq = {};
  std::optional<SeqLenPolicy> seq_len_policy = {};  // dynamic, longrope; sequence
  // Pairs turn by minus the angle, as in NanoChat's code. Resolved frequencies are then negative.
  bool reverse = false;
  Precision precision = Precision::kExact;

  bool operator==(const RopeConfig&) const = default;
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_ROPE_CONFIG_H_
