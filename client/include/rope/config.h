// RopeConfig and RopeSpec: the rotary embedding of a model, in the vocabulary of Hugging Face
// config.json. proto/rope/v1/config.proto documents every range and default. The server validates
// them; the client does not.
//
// Threading:  Values.
#ifndef ROPE_CONFIG_H_
#define ROPE_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rope::client {

// Which two channels of a head form a pair and rotate together.
enum class Pairing {
  kUnspecified,  // the pairing of the model or of the config's model_type
  kHalf,         // channels i and i + rotary_dim/2 (GPT-NeoX, Hugging Face Llama)
  kInterleaved,  // channels 2i and 2i + 1 (GPT-J, DeepSeek)
};

// The variable in which YaRN's ramp is linear: the frequency's index (unspecified: kIndex), or its
// turns over the original length.
enum class YarnRamp { kUnspecified, kIndex, kTurns };

// The factor list of longrope. Unspecified: chosen by each sequence's length.
enum class LongropeBranch { kUnspecified, kShort, kLong };

// How the axes of a three-axis position (t, h, w) are assigned to frequencies. Unspecified: by
// mrope_interleaved.
enum class MropeLayout { kUnspecified, kSections, kInterleaved, kHwInterleaved, kAxial };

// The length that dynamic and longrope use: each sequence's (kSequence, and if unspecified), or the
// longest of the request for all sequences (kBatch).
enum class SeqLenPolicy { kUnspecified, kSequence, kBatch };

// The implementation whose interpretation of a config applies where implementations disagree.
enum class Compat { kUnspecified, kHf, kVllm, kLlamacpp, kDeepseek };

// How angles are computed and products are rounded. Unspecified: kExact. kHf: rounds like Hugging
// Face's eager code, step by step in the tensor's dtype.
enum class Precision { kUnspecified, kExact, kHf };

// xPos: q is scaled up and k down (and the reverse) with the distance of a position from a centre.
struct XPos {
  double scale_base = 512;
  int64_t centre = 0;

  bool operator==(const XPos&) const = default;
};

struct RopeConfig {
  std::string rope_type = {};  // empty: "default"
  std::optional<double> rope_theta = {};
  std::optional<int64_t> head_dim = {};
  std::optional<int64_t> rotary_dim = {};
  std::optional<double> partial_rotary_factor = {};
  std::optional<int64_t> max_position_embeddings = {};
  std::optional<int64_t> original_max_position_embeddings = {};
  std::optional<double> factor = {};
  std::optional<double> attention_factor = {};
  std::optional<double> mscale = {};
  std::optional<double> mscale_all_dim = {};
  std::optional<double> beta_fast = {};
  std::optional<double> beta_slow = {};
  std::optional<bool> truncate = {};
  std::optional<double> low_freq_factor = {};
  std::optional<double> high_freq_factor = {};
  std::vector<double> short_factor = {};
  std::vector<double> long_factor = {};
  std::vector<int64_t> mrope_section = {};
  std::optional<bool> mrope_interleaved = {};
  MropeLayout mrope_layout = MropeLayout::kUnspecified;
  std::vector<int32_t> mrope_axes = {};  // [rotary_dim/2]: 0 t, 1 h, 2 w; without mrope_section
  std::optional<bool> reverse = {};      // true: pairs turn by minus the angle
  std::optional<double> attn_factor = {};
  YarnRamp ramp = YarnRamp::kUnspecified;
  LongropeBranch longrope_branch = LongropeBranch::kUnspecified;
  std::optional<double> alpha = {};
  std::optional<double> mixed_b = {};
  std::vector<double> inv_freq = {};          // explicit; replaces rope_theta
  std::optional<int64_t> rotary_offset = {};  // first rotated channel
  std::optional<XPos> xpos = {};
  SeqLenPolicy seq_len_policy = SeqLenPolicy::kUnspecified;

  bool operator==(const RopeConfig&) const = default;
};

// Names one rotary embedding. Set exactly one of model, config_id, config_json and config.
struct RopeSpec {
  std::string model = {};  // a registered name (Client::ListModels)
  // From Client::Describe; the same on every server. Excludes all other fields. NOT_FOUND: the
  // server has not seen the config, or has forgotten it.
  std::string config_id = {};
  std::string config_json =
      {};  // a verbatim config.json, or its rotary embedding part; at most 1 MiB
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

  Pairing pairing = Pairing::kUnspecified;
  Compat compat = Compat::kUnspecified;
  Precision precision = Precision::kUnspecified;

  bool operator==(const RopeSpec&) const = default;
};

}  // namespace rope::client

#endif  // ROPE_CONFIG_H_
