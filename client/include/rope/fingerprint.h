// Fingerprints of K: which rotation the keys of a KV cache have. Kernels, server and client use the
// same structs.
//
// A fingerprint is a hash of all that the rotation adds to K, as one engine computes it. With equal
// fingerprints an engine writes the same bits of K on one machine, from the same hidden states and
// weights. A config_id (describe.h) names one embedding of this service instead: with the settings
// that do not reach K, and without an engine.
//
// Threading:  Values.
#ifndef ROPE_FINGERPRINT_H_
#define ROPE_FINGERPRINT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rope/config.h"
#include "rope/tensor.h"

namespace rope {

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

}  // namespace rope

namespace rope::client {

using rope::KeyComparison;
using rope::KeyIdentity;
using rope::KeyMatch;
using rope::KeyRows;

// Whose K: a config, and the engine that computes it.
struct KeySource {
  RopeSpec rope = {};  // with a layer or layer_type: those layers alone; no compat, no precision
  std::string engine = {};  // "vllm" or "vllm@0.33.0"; empty: the config as it is written
  // The length that the engine is started with. Required where it chooses longrope's list by it.
  std::optional<int64_t> max_model_len = {};
  std::optional<DType> dtype = {};       // of K: kFloat32, kFloat16 or kBFloat16
  std::optional<int64_t> head_dim = {};  // required if the config does not contain it
};

struct FingerprintRequest {
  KeySource key = {};
  std::optional<KeySource> other = {};  // also identify this one, and compare
};

struct FingerprintReply {
  KeyIdentity key = {};
  std::optional<KeyIdentity> other = {};
  std::optional<KeyComparison> comparison = {};
};

}  // namespace rope::client

#endif  // ROPE_FINGERPRINT_H_
