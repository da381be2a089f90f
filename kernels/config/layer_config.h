// LayerTypes: the type of each layer of a model, one byte a layer. LayerConfig: the embedding of
// one layer of a config.json. KeptBytes: the memory that a value keeps outside of itself.
//
// Threading:  Values; const access from any thread.
// Limits:     64 different types, of at most 128 bytes each.
#ifndef ROPE_KERNELS_CONFIG_LAYER_CONFIG_H_
#define ROPE_KERNELS_CONFIG_LAYER_CONFIG_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "kernels/config/remark.h"
#include "kernels/config/rope_config.h"
#include "kernels/dtype/dtype.h"

namespace rope::kernels {

inline constexpr size_t kLayerTypesMax = 64;
inline constexpr size_t kLayerTypeBytesMax = 128;

class LayerTypes {
 public:
  // Adds a layer. False: nothing was added, because the type is too long or one type too many.
  bool Add(std::string_view type);

  bool empty() const { return numbers_.empty(); }
  size_t size() const { return numbers_.size(); }
  // REQUIRES: layer < size().
  const std::string& operator[](size_t layer) const { return names_[numbers_[layer]]; }

  // The different types, in the order of their first layers.
  const std::vector<std::string>& names() const { return names_; }
  // The index in names() of a layer's type. REQUIRES: layer < size().
  size_t NumberOf(size_t layer) const { return numbers_[layer]; }
  // The index in names() of a type; unset if no layer has it.
  std::optional<size_t> Find(std::string_view type) const;

  // Bytes in memory outside of the object.
  int64_t KeptBytes() const;

 private:
  std::vector<std::string> names_;
  std::vector<uint8_t> numbers_;  // by layer, indices into names_
};

static_assert(kLayerTypesMax <= UINT8_MAX);

// Selects layers of a config; at most one field is set.
struct LayerChoice {
  std::optional<int64_t> layer = {};  // index from 0
  std::string layer_type = {};        // for example "full_attention"
};

// What the file says of the scale of attention beside the rotation, which no kernel uses
// (kernels/compat/attention_scale.h).
struct ScaleKeys {
  std::optional<bool> apply_yarn_scaling = {};
  std::optional<bool> apply_scale = {};        // Mistral's name of it
  std::optional<double> beta = {};             // llama_4_scaling_beta of the rope parameters
  std::optional<int64_t> top_length = {};      // the top-level original_max_position_embeddings
  std::optional<double> mistral_beta = {};     // the top-level llama_4_scaling
  std::optional<int64_t> mistral_length = {};  // its original_max_position_embeddings
  std::optional<bool> attn_temperature_tuning = {};
  std::optional<double> attn_scale = {};
  std::optional<int64_t> floor_scale = {};
};

// By what engines choose a model's code, and how the file spells what that code reads by its
// spelling. The names are empty if the file has none.
struct ModelNames {
  std::string model_type = {};  // the one of text_config if the file has both
  std::vector<std::string> architectures = {};
  // partial_rotary_factor is among the rope parameters, and not at the top level.
  bool fraction_in_parameters = false;
  bool is_su = false;                 // the rope_type is longrope by its old name
  bool length_in_parameters = false;  // the original length is among the rope parameters
  // The rotated channels that the file states where the model's code does not read them.
  std::optional<int64_t> stated_channels = {};
  bool newer_keys = false;                 // the block is rope_parameters
  bool by_layer_type = false;              // with an object for each layer type
  std::optional<double> older_theta = {};  // the base that transformers 4 finds; unset: not known
  // The config by rope_parameters, if rope_scaling replaces it.
  std::shared_ptr<const RopeConfig> replaced = {};
};

// The embedding of one layer of a config.json.
struct LayerConfig {
  RopeConfig config;
  std::string layer_type;          // empty if layers do not differ
  bool rotates = true;             // false: these layers return their tensors unchanged
  std::optional<Pairing> pairing;  // set if the model_type is known
  // The channel order in which the model's code leaves its interleaved pairs, if it is another one.
  std::optional<Pairing> channel_order;
  ModelNames names = {};
  std::shared_ptr<const ScaleKeys> scale = {};  // null: the file says nothing of it
  // About the file: unknown keys, assumed defaults. rope_readings.h has those about the values.
  std::vector<Remark> remarks = {};

  // Bytes in memory outside of the object.
  int64_t KeptBytes() const;
};

inline int64_t KeptBytes(const std::string& text) {
  const bool inside = text.capacity() <= std::string().capacity();
  return inside ? 0 : static_cast<int64_t>(text.capacity() + 1);
}

inline int64_t KeptBytes(const std::vector<bool>& flags) {
  return static_cast<int64_t>(flags.capacity() / 8);
}

inline int64_t KeptBytes(const Remark& remark) {
  return KeptBytes(remark.text) + KeptBytes(remark.field);
}

template <typename T>
int64_t KeptBytes(const std::vector<T>& values) {
  auto bytes = static_cast<int64_t>(values.capacity() * sizeof(T));
  if constexpr (requires(const T& value) { value.KeptBytes(); }) {
    for (const T& value : values) bytes += value.KeptBytes();
  } else if constexpr (!std::is_trivially_copyable_v<T>) {
    for (const T& value : values) bytes += KeptBytes(value);
  }
  return bytes;
}

inline int64_t KeptBytes(const RopeConfig& config) {
  return KeptBytes(config.short_factor) + KeptBytes(config.long_factor) +
         KeptBytes(config.inv_freq) +
         (config.mrope.has_value() ? KeptBytes(config.mrope->axes) : 0);
}

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_LAYER_CONFIG_H_
