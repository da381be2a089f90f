// Fingerprints of K: which rotation the keys of a KV cache have.
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

#include "rope/config.h"
#include "rope/tensor.h"

namespace rope::client {

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

}  // namespace rope::client

#endif  // ROPE_FINGERPRINT_H_
