// KeyIdentity: which rotation the keys of a KV cache have, as one engine computes it, and whether a
// cache of one serves another.
//
//   ModelConfig --Layer--> LayerConfig --ReadAs(engine)--> RopeConfig --Resolve--> KeyRows
//
// Threading:  Pure functions; any thread.
// Errors:     INVALID_ARGUMENT, "field: got X, want Y".
// Precision:  With an engine, frequencies are float32 in the steps of its code, and the factor is
//             float32. Without one they are exact, as the tables of this service.
#ifndef ROPE_KERNELS_IDENTITY_KEY_IDENTITY_H_
#define ROPE_KERNELS_IDENTITY_KEY_IDENTITY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/compat/rope_readings.h"
#include "kernels/config/config_json.h"
#include "kernels/config/layer_config.h"
#include "kernels/dtype/dtype.h"

namespace rope::kernels {

// What rotates the keys of some layers.
struct KeyRows {
  bool rotates = false;  // false: keys stay as they are; the other fields are then empty
  std::optional<Pairing> pairing = {};  // unset: the config does not say
  // The order in which the engine leaves rotated pairs; unset if it is `pairing`.
  std::optional<Pairing> channel_order = {};
  int64_t head_dim = 0;
  int64_t rotary_offset = 0;          // first channel that rotates
  int64_t rotary_dim = 0;             // channels that rotate
  double factor = 1;                  // multiplies the rotated channels of K
  std::vector<double> inv_freq = {};  // [rotary_dim/2], radians per position
  // The axis of each frequency: 0 t, 1 h, 2 w. Empty: positions have one axis.
  std::vector<int32_t> axes = {};
  // Rows that follow the length: how, in words, and the frequencies of longer sequences where these
  // are fixed. Empty: K does not depend on the length.
  std::string by_length = {};
  std::vector<double> long_inv_freq = {};
  std::string xpos = {};  // scale_base and centre in words; empty: no xPos
};

// Which rotation K has.
struct KeyIdentity {
  std::string fingerprint = {};    // 32 hex digits, the same on every server
  std::string engine = {};         // whose reading this is; empty: the config's, computed exactly
  std::string version = {};        // the versions that read it so: "0.30.0 to 0.33.0"
  std::string dtype = {};          // of K: "bf16"; empty: not given, and not in the fingerprint
  std::string table_dtype = {};    // of the engine's cos and sin; empty: that of K
  std::vector<KeyRows> rows = {};  // those that differ, in the order of their first layers
  // For each layer an index of `rows`. Empty: all layers have rows[0], or the number of layers is
  // not known; then layer_types names the layers of each of `rows`.
  std::vector<int32_t> layers = {};
  std::vector<std::string> layer_types = {};
  std::vector<std::string> notes = {};  // what the engine reads in another way
};

enum class KeyMatch {
  kUnspecified,
  kSame,         // equal fingerprints
  kRounding,     // the same rotation; bits may differ by engine or dtype
  kReordered,    // the same rotation; the channels stand in another order
  kConvertible,  // one rotation, and a factor, turns K of one into K of the other
  kDifferent,    // none of these
};

struct KeyComparison {
  KeyMatch match = KeyMatch::kUnspecified;
  std::vector<std::string> differences = {};  // "what: A | B", by layer where layers differ
};

struct KeyOptions {
  std::optional<Pairing> pairing = {};        // replaces that of the config
  EngineVersion engine = {};                  // without a name: the config as it is written
  std::optional<int64_t> max_model_len = {};  // >= 1
  std::optional<DType> dtype = {};            // of K
  std::optional<int64_t> head_dim = {};       // used if the config has none
};

struct IdentifiedKey {
  KeyIdentity identity;  // except its fingerprint
  // Equal for equal identities: a format version, and the numbers of the rows in every bit. The
  // fingerprint is the hash of this text.
  std::string text;
};

// The K of all layers of a model. INVALID_ARGUMENT: no head_dim; as ReadAs
// and Resolve; layers with more different rows than kLayerTypesMax, or with more columns in all
// than 2^16; max_model_len is missing, and the engine chooses longrope's list by it.
absl::StatusOr<IdentifiedKey> IdentifyKey(const ModelConfig& model, const KeyOptions& options);

// The K of layers that all have this config.
absl::StatusOr<IdentifiedKey> IdentifyKey(const LayerConfig& layer, const KeyOptions& options);

// Names each difference of `a` and `b` once, with the first layer that has it. One rotation
// converts a layer if both turn the same pairs of channels.
KeyComparison CompareKeys(const KeyIdentity& a, const KeyIdentity& b);

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_IDENTITY_KEY_IDENTITY_H_
