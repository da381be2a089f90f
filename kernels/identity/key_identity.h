// KeyIdentity: which rotation the keys of a KV cache have, as one engine computes it.
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

#include "absl/status/statusor.h"
#include "kernels/compat/rope_readings.h"
#include "kernels/config/config_json.h"
#include "kernels/config/layer_config.h"
#include "kernels/dtype/dtype.h"
#include "kernels/dtype/pairing.h"
#include "rope/fingerprint.h"

namespace rope::kernels {

using rope::KeyComparison;
using rope::KeyIdentity;
using rope::KeyMatch;
using rope::KeyRows;

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

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_IDENTITY_KEY_IDENTITY_H_
