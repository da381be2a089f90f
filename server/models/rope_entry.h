// RopeEntry: one spec, parsed and resolved.
//
// Threading:  Immutable once a ModelRegistry returns it.
// Errors:     Resolve: INVALID_ARGUMENT, with the field's path.
#ifndef ROPE_SERVER_MODELS_ROPE_ENTRY_H_
#define ROPE_SERVER_MODELS_ROPE_ENTRY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/describe.h"
#include "kernels/frequencies/frequencies.h"

namespace rope::server {

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

}  // namespace rope::server

#endif  // ROPE_SERVER_MODELS_ROPE_ENTRY_H_
