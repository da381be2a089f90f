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

#include "absl/status/statusor.h"
#include "kernels/config/config_json.h"
#include "kernels/config/layer_config.h"
#include "kernels/config/rope_config.h"
#include "kernels/describe.h"
#include "kernels/dtype/pairing.h"
#include "kernels/frequencies/frequencies.h"
#include "rope/v1/admin.pb.h"

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
  // The memory that it keeps (kernels/config/kept_bytes.h), its frequencies included.
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
  int64_t bytes_ = 0;
};

using RopeEntries = std::vector<std::shared_ptr<const RopeEntry>>;

// Model: a model that the registry knows by name, or the config of a spec, parsed.
//
// Threading:  Immutable once it is shared.
// Errors:     INVALID_ARGUMENT, with the field's path.

// What ListModels shows of a layer.
struct ShownLayer {
  std::optional<kernels::Pairing> pairing = {};
  kernels::RopeType rope_type = kernels::RopeType::kDefault;
  double rope_theta = 0;
  std::optional<int64_t> max_position_embeddings = {};
};

struct Model {
  std::string origin;
  std::variant<kernels::ModelConfig, kernels::LayerConfig> config;  // all layers, or the only one
  std::optional<kernels::Pairing> pairing;                          // of a preset or a registration
  std::string owner;                                                // of a registered model
  std::string composite_json;  // its file, if that has sub-configs
  int64_t bytes = 0;           // of a registered model: KeptBytes
  int64_t generation = 0;      // unique to each registration; 0: not registered
  // The summary, set by Summarize. Looking at the layers takes longer the more of them there are.
  std::optional<ShownLayer> shown;  // of the first layer type; unset: there is no such layer
  int64_t head_dim = 0;             // of the first layer type; 0: the config does not say
  int64_t rotary_dim = 0;           // the same
  int64_t width = 0;                // WidthOf, the most of all layer types

  // Sets `composite_json` if requests may choose another config of the file.
  // REQUIRES: `config` was read from `json`.
  void KeepComposite(std::string_view json);
  // Sets the summary. Resolves the embedding of the first layer type, which takes milliseconds if
  // it is wide.
  void Summarize();
  // The embedding of the chosen layers. `field`: the path that errors of the config begin with.
  absl::StatusOr<kernels::LayerConfig> Layer(const kernels::LayerChoice& choice,
                                             const std::string& field) const;
  // As kernels::ModelConfig::SameLayers; false for a config of a single layer.
  bool SameLayers(int64_t a, int64_t b) const;
  // The memory that it keeps, approximately.
  int64_t KeptBytes() const;
};
using ModelPtr = std::shared_ptr<const Model>;

// As ListModels describes it. Looks at no layer. REQUIRES: Summarize.
v1::Model WriteModel(const std::string& name, const Model& model);

}  // namespace rope::server

#endif  // ROPE_SERVER_MODELS_MODEL_H_
