// A model: its config, and the embeddings that its layers name.
#ifndef ROPE_SERVER_MODELS_MODEL_H_
#define ROPE_SERVER_MODELS_MODEL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/config/config_json.h"
#include "kernels/config/layer_config.h"
#include "kernels/config/rope_config.h"
#include "kernels/describe.h"
#include "kernels/dtype/pairing.h"
#include "kernels/frequencies/frequencies.h"

namespace rope::server {

// RopeEntry: one spec, parsed and resolved.
//
// Threading:  Immutable once a ModelRegistry returns it.
// Errors:     Resolve: INVALID_ARGUMENT, with the field's path.

class RopeEntry {
 public:
  const std::string& config_id() const { return config_id_; }
  const kernels::LayerRope& rope() const { return rope_; }
  // The layer, with its config as the spec's `compat` interprets it.
  const kernels::LayerConfig& layer() const { return rope_.layer; }
  // The spec's pairing, else that of the preset or model_type, else nothing.
  std::optional<kernels::Pairing> pairing() const { return rope_.pairing; }
  const std::vector<std::string>& warnings() const { return rope_.warnings; }
  // The heads of q or of k that the model has; nothing: the spec is no model's.
  std::optional<int64_t> heads(bool is_k) const { return is_k ? kv_heads_ : heads_; }
  // The memory that it keeps (kernels/config/layer_config.h), its frequencies included.
  int64_t bytes() const { return bytes_; }

  // The embedding for heads of `head_dim` channels. Only a config without head_dim uses the
  // parameter. INVALID_ARGUMENT: the config has no head_dim, and `head_dim` is absent or does not
  // fit the config.
  absl::StatusOr<std::shared_ptr<const kernels::ResolvedRope>> Resolve(
      std::optional<int64_t> head_dim) const;

 private:
  friend class ModelRegistry;

  // Sets the config_id and the bytes. REQUIRES: all other members are set.
  void Complete();

  std::string config_id_;
  std::string field_;  // the request's field of the config, with a dot, for errors
  kernels::LayerRope rope_;
  std::shared_ptr<const kernels::ResolvedRope> resolved_;  // null: the config has no head_dim
  std::optional<int64_t> heads_;
  std::optional<int64_t> kv_heads_;
  int64_t bytes_ = 0;
};

using RopeEntries = std::vector<std::shared_ptr<const RopeEntry>>;

// Model: a model that the registry knows by name, or the config of a spec, parsed.
//
// Threading:  Immutable once it is shared.
// Errors:     INVALID_ARGUMENT, with the field's path.

struct Model {
  std::variant<kernels::ModelConfig, kernels::LayerConfig> config;  // all layers, or the only one
  std::optional<kernels::Pairing> pairing;                          // of a preset
  std::string composite_json;  // its file, if that has sub-configs

  // Sets `composite_json` if requests may choose another config of the file.
  // REQUIRES: `config` was read from `json`.
  void KeepComposite(std::string_view json);
  // The embedding of the chosen layers. `field`: the path that errors of the config begin with.
  absl::StatusOr<kernels::LayerConfig> Layer(const kernels::LayerChoice& choice,
                                             const std::string& field) const;
  // As kernels::ModelConfig::SameLayers; false for a config of a single layer.
  bool SameLayers(int64_t a, int64_t b) const;
  // The memory that it keeps, approximately.
  int64_t KeptBytes() const;
};
using ModelPtr = std::shared_ptr<const Model>;

// Prefixes a kernel's error, which names a field of the config or of the choice of a part of it,
// with the request's field. `config_field`: the path of the config.
absl::Status InField(const std::string& config_field, const absl::Status& status);

// A wider embedding is resolved on another thread than the one that received its spec: 65,536
// channels take 5 milliseconds, and two to three times as long with xpos or precision hf.
inline constexpr int64_t kWidthHereMax = 2048;

}  // namespace rope::server

#endif  // ROPE_SERVER_MODELS_MODEL_H_
