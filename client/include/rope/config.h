// Which rotary embedding: the vocabulary of Hugging Face config.json. proto/rope/v1/config.proto
// says every range and default; the server checks them, the client does not.
//
// Threading:  Values.
#ifndef ROPE_CONFIG_H_
#define ROPE_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rope::client {

// Which two channels of a head turn together.
enum class Pairing {
  kUnspecified,  // as the model or the config's model_type says
  kHalf,         // i with i + rotary_dim/2 (GPT-NeoX, Hugging Face Llama)
  kInterleaved,  // 2i with 2i + 1 (GPT-J, DeepSeek)
};

// How YaRN counts between its edges.
enum class YarnRamp { kUnspecified, kIndex, kTurns };

// The list that longrope divides by; unspecified: by each sequence's length.
enum class LongropeBranch { kUnspecified, kShort, kLong };

// Which axis of a three-axis position each frequency takes; unspecified: as mrope_interleaved says.
enum class MropeLayout { kUnspecified, kSections, kInterleaved, kHwInterleaved, kAxial };

// Whose length decides dynamic and longrope: each sequence's (unspecified), or the longest one's.
enum class SeqLenPolicy { kUnspecified, kSequence, kBatch };

// Whose reading of a config counts where implementations disagree.
enum class Compat { kUnspecified, kHf, kVllm, kLlamacpp, kDeepseek };

// How angles are computed and products rounded; unspecified: exactly. kHf: as Hugging Face's eager
// code, step by step in the tensor's dtype.
enum class Precision { kUnspecified, kExact, kHf };

// q and k scale in opposite directions with the distance to a centre.
struct XPos {
  double scale_base = 512;
  int64_t centre = 0;
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
  std::optional<double> attn_factor = {};
  YarnRamp ramp = YarnRamp::kUnspecified;
  LongropeBranch longrope_branch = LongropeBranch::kUnspecified;
  std::optional<double> alpha = {};
  std::optional<double> mixed_b = {};
  std::vector<double> inv_freq = {};          // in place of those of rope_theta
  std::optional<int64_t> rotary_offset = {};  // first rotated channel
  std::optional<XPos> xpos = {};
  SeqLenPolicy seq_len_policy = SeqLenPolicy::kUnspecified;
};

// Names one rotary embedding: exactly one of the first four.
struct RopeSpec {
  std::string model = {};      // a name that the server knows (Client::ListModels)
  std::string config_id = {};  // from Client::Describe, for as long as that server runs
  std::string config_json =
      {};  // a verbatim config.json, or the part of it about rotary embeddings
  std::optional<RopeConfig> config = {};

  // Which layer, where a config differs by layer; at most one of the two.
  std::optional<int32_t> layer = {};
  std::string layer_type = {};

  Pairing pairing = Pairing::kUnspecified;
  Compat compat = Compat::kUnspecified;
  Precision precision = Precision::kUnspecified;
};

}  // namespace rope::client

#endif  // ROPE_CONFIG_H_
