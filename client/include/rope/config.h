// RopeConfig: one rotary embedding as a user states it, with the field names of Hugging Face's
// config.json. RopeSpec: the embedding that a call uses. The server validates both; the client does
// not. Kernels, server and client use the same structs; this header includes nothing but the
// standard library and compiles as C++17.
//
// Threading:  Values; const access from any thread.
#ifndef ROPE_CONFIG_H_
#define ROPE_CONFIG_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace rope {

// The formula that scales the frequencies.
enum class RopeType { kDefault, kLinear, kDynamic, kNtk, kYarn, kLongrope, kLlama3, kProportional };

// The names in config.json. The first of a type is the one that this project writes.
inline constexpr std::pair<std::string_view, RopeType> kRopeTypeNames[] = {
    {"default", RopeType::kDefault},
    {"linear", RopeType::kLinear},
    {"dynamic", RopeType::kDynamic},
    {"ntk", RopeType::kNtk},
    {"yarn", RopeType::kYarn},
    {"longrope", RopeType::kLongrope},
    {"su", RopeType::kLongrope},
    {"llama3", RopeType::kLlama3},
    {"proportional", RopeType::kProportional},
    {"mrope", RopeType::kDefault},
};

// "default", "linear", ...
constexpr std::string_view Name(RopeType type) {
  for (const auto& [name, named] : kRopeTypeNames) {
    if (named == type) return name;
  }
  return "invalid";
}

// Which two channels of a head form a pair and rotate together.
enum class Pairing : uint8_t {
  kHalf,         // channels i and i + rotary_dim/2 (GPT-NeoX, Hugging Face Llama)
  kInterleaved,  // channels 2i and 2i + 1 (GPT-J, DeepSeek)
};

// "half" or "interleaved".
constexpr std::string_view Name(Pairing pairing) {
  return pairing == Pairing::kHalf ? "half" : "interleaved";
}

// The implementation whose interpretation of a config applies where implementations disagree.
enum class Compat {
  kDefault,  // Hugging Face; dynamic and longrope by sequence
  kHf,       // Hugging Face; dynamic and longrope by the longest sequence of the call
  kVllm,
  kLlamacpp,
  kDeepseek,  // DeepSeek's model code
};

// The arithmetic of angles and rows, and of products.
enum class Precision {
  kExact,  // angles in long double and double, rows rounded once to float32
  kHf,     // rounds like Hugging Face's eager code, step by step in the tensor's dtype
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
};

inline bool operator==(const Mrope& a, const Mrope& b) {
  return a.section == b.section && a.layout == b.layout && a.axes == b.axes;
}
inline bool operator!=(const Mrope& a, const Mrope& b) {
  return !(a == b);
}

// xPos, the extrapolatable position embedding, with a fixed centre. Rows of q are multiplied by
// zeta_i^((p - centre) / scale_base) and rows of k by its inverse, where zeta_i = (2i + 0.4 d) /
// (1.4 d) and d = rotary_dim. Source: Sun et al., "A Length-Extrapolatable Transformer", in the
// form of FlashAttention's rotary layer. That layer uses half of the current length as the centre.
struct XPos {
  double scale_base = 512;  // positions, >= 1
  int64_t centre = 0;       // the position with scale 1, 0 to 2^30
};

inline bool operator==(const XPos& a, const XPos& b) {
  return a.scale_base == b.scale_base && a.centre == b.centre;
}
inline bool operator!=(const XPos& a, const XPos& b) {
  return !(a == b);
}

// The comment of a field gives the types that use it, its range, and its default. An unset field
// has this default.
struct RopeConfig {
  RopeType rope_type = RopeType::kDefault;
  double rope_theta = 10000;               // base, finite, > 0; yarn: not 1
  std::optional<int64_t> head_dim = {};    // channels of a head, 2..65536
  std::optional<int64_t> rotary_dim = {};  // even, 2..head_dim; head_dim * partial_rotary_factor
  std::optional<double> partial_rotary_factor = {};     // (0, 1]; 1
  std::optional<int64_t> max_position_embeddings = {};  // positions, 1..2^53
  // Positions, 1..2^53; max_position_embeddings.
  std::optional<int64_t> original_max_position_embeddings = {};
  std::optional<double> factor = {};            // > 0; yarn and longrope: the ratio of the lengths
  std::optional<double> attention_factor = {};  // 0..3.4e38; replaces the computed one
  std::optional<double> mscale = {};            // yarn; >= 0, used only with mscale_all_dim
  std::optional<double> mscale_all_dim = {};    // yarn; >= 0, used only with mscale
  std::optional<double> beta_fast = {};         // yarn; >= beta_slow; 32
  std::optional<double> beta_slow = {};         // yarn; >= 0; 1
  std::optional<bool> truncate = {};            // yarn; true
  std::optional<double> low_freq_factor = {};   // llama3, required; > 0
  std::optional<double> high_freq_factor = {};  // llama3, required; >= low_freq_factor
  std::vector<double> short_factor = {};        // longrope, required; rotary_dim/2 numbers > 0
  std::vector<double> long_factor = {};         // longrope, required; rotary_dim/2 numbers > 0
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
};

inline bool operator==(const RopeConfig& a, const RopeConfig& b) {
  // A field that is missing here does not compile. Comparing tuples of so many members would take
  // the compiler a second in each source.
  const auto& [rope_type, rope_theta, head_dim, rotary_dim, partial_rotary_factor,
               max_position_embeddings, original_max_position_embeddings, factor, attention_factor,
               mscale, mscale_all_dim, beta_fast, beta_slow, truncate, low_freq_factor,
               high_freq_factor, short_factor, long_factor, mrope, rotary_offset, attn_factor, ramp,
               longrope_branch, alpha, mixed_b, xpos, inv_freq, seq_len_policy, reverse,
               precision] = a;
  return rope_type == b.rope_type && rope_theta == b.rope_theta && head_dim == b.head_dim &&
         rotary_dim == b.rotary_dim && partial_rotary_factor == b.partial_rotary_factor &&
         max_position_embeddings == b.max_position_embeddings &&
         original_max_position_embeddings == b.original_max_position_embeddings &&
         factor == b.factor && attention_factor == b.attention_factor && mscale == b.mscale &&
         mscale_all_dim == b.mscale_all_dim && beta_fast == b.beta_fast &&
         beta_slow == b.beta_slow && truncate == b.truncate &&
         low_freq_factor == b.low_freq_factor && high_freq_factor == b.high_freq_factor &&
         short_factor == b.short_factor && long_factor == b.long_factor && mrope == b.mrope &&
         rotary_offset == b.rotary_offset && attn_factor == b.attn_factor && ramp == b.ramp &&
         longrope_branch == b.longrope_branch && alpha == b.alpha && mixed_b == b.mixed_b &&
         xpos == b.xpos && inv_freq == b.inv_freq && seq_len_policy == b.seq_len_policy &&
         reverse == b.reverse && precision == b.precision;
}
inline bool operator!=(const RopeConfig& a, const RopeConfig& b) {
  return !(a == b);
}

}  // namespace rope

namespace rope::client {

using rope::Compat, rope::LongropeBranch, rope::Mrope, rope::Pairing, rope::Precision;
using rope::RopeConfig, rope::RopeType, rope::SeqLenPolicy, rope::XPos, rope::YarnRamp;

// Names one rotary embedding. Set exactly one of model, config_id, config_json and config.
struct RopeSpec {
  std::string model = {};  // a name that ListModels gives
  // From Client::Describe; the same on every server. Excludes all other fields. NOT_FOUND: the
  // server has not seen the config, or has forgotten it.
  std::string config_id = {};
  // A verbatim config.json, or its rotary embedding part; at most 1 MiB.
  std::string config_json = {};
  std::optional<RopeConfig> config = {};

  // The layer, for a config that differs by layer. Set at most one of the two.
  std::optional<int32_t> layer = {};
  std::string layer_type = {};
  // Only in RotateRequest::rope, for tensors with an L axis, in place of the two: index i of the
  // axis is layer first_layer + i of the config, and rotates as that layer does.
  std::optional<int32_t> first_layer = {};

  // The config to read in a composite config.json, by its path in the file: "vision_config",
  // "thinker_config.audio_config". Empty: the file's text_config, or the file itself.
  std::string sub_config = {};

  std::optional<Pairing> pairing = {};  // unset: of the model, or of the config's model_type
  Compat compat = Compat::kDefault;
  std::optional<Precision> precision = {};  // unset: of `config`, else exact
};

inline bool operator==(const RopeSpec& a, const RopeSpec& b) {
  // A field that is missing here does not compile.
  const auto& [model, config_id, config_json, config, layer, layer_type, first_layer, sub_config,
               pairing, compat, precision] = a;
  return model == b.model && config_id == b.config_id && config_json == b.config_json &&
         config == b.config && layer == b.layer && layer_type == b.layer_type &&
         first_layer == b.first_layer && sub_config == b.sub_config && pairing == b.pairing &&
         compat == b.compat && precision == b.precision;
}
inline bool operator!=(const RopeSpec& a, const RopeSpec& b) {
  return !(a == b);
}

}  // namespace rope::client

#endif  // ROPE_CONFIG_H_
