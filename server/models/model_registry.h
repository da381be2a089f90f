// ModelRegistry: resolves a rope.v1.RopeSpec to a rotary embedding. It knows the presets, the
// operator's --model files, the models that callers registered and the config_ids that Describe
// returned. It caches resolved specs, so that a repeated spec costs one look-up.
//
//   Find -> cached -> RopeEntry
//        -> not cached -> Read (parse, pick the layer, validate, resolve) -> Keep -> RopeEntry
//
// Threading:  Thread-safe. A hit takes a shared lock. Nothing is parsed or resolved under a lock.
// Ownership:  Entries are immutable and shared. They outlive their eviction and their model.
// Errors:     INVALID_ARGUMENT: several alternatives or none, an invalid config. NOT_FOUND: no such
//             model or config_id.
// Limits:     At most limits::kSpecsMax specs with together kSpecBytesMax bytes are cached; the
//             oldest is evicted first. Registered models: see RegisteredCounts.
#ifndef ROPE_SERVER_MODELS_MODEL_REGISTRY_H_
#define ROPE_SERVER_MODELS_MODEL_REGISTRY_H_

#include <atomic>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/compat/rope_readings.h"
#include "kernels/config/config_json.h"
#include "kernels/describe.h"
#include "kernels/frequencies/frequencies.h"
#include "proto/mutex.h"
#include "rope/v1/admin.pb.h"
#include "rope/v1/config.pb.h"
#include "server/models/registered_counts.h"

namespace rope::server {

// One spec, parsed and resolved.
class RopeEntry {
 public:
  const std::string& config_id() const { return config_id_; }
  const kernels::LayerRope& rope() const { return rope_; }
  // The layer, with its config as the spec's `compat` interprets it.
  const kernels::LayerConfig& layer() const { return rope_.layer; }
  // The spec's pairing, else that of the preset or model_type, else nothing.
  std::optional<kernels::Pairing> pairing() const { return rope_.pairing; }
  const std::vector<std::string>& warnings() const { return rope_.warnings; }

  // The embedding for heads of `head_dim` channels. Only a config without head_dim uses the
  // parameter. INVALID_ARGUMENT: the config has no head_dim, and `head_dim` is absent or does not
  // fit the config.
  absl::StatusOr<std::shared_ptr<const kernels::ResolvedRope>> Resolve(
      std::optional<int64_t> head_dim) const;

 private:
  friend class ModelRegistry;

  std::string config_id_;
  std::string field_;       // the request's field of the config, with a dot, for errors
  std::string model_;       // the model's name; empty: the spec names no model
  int64_t generation_ = 0;  // of the model
  kernels::LayerRope rope_;
  std::shared_ptr<const kernels::ResolvedRope> resolved_;  // null: the config has no head_dim
};

class ModelRegistry {
 public:
  // A model file of the operator (--model=NAME=CONFIG.json).
  struct ModelFile {
    std::string name;
    std::string config_json;
  };

  // Holds the presets and the files; a file may replace a preset. INVALID_ARGUMENT: an invalid name
  // or config, a duplicate name.
  static absl::StatusOr<std::unique_ptr<ModelRegistry>> Create(absl::Span<const ModelFile> files);

  // Returns the cached entry of `spec`, or parses and resolves it. The entry's config_id is valid
  // while the registry caches the entry.
  absl::StatusOr<std::shared_ptr<const RopeEntry>> Find(const v1::RopeSpec& spec);

  // Adds a model: a copy of the config that `spec` names, with all its layers unless the spec picks
  // one. Every layer must have a pairing. It is resolved now, unless its head_dim comes with a
  // tensor. The model belongs to `owner` (peers.h); every client may use it.
  // INVALID_ARGUMENT: as Find; an invalid name, no pairing. NOT_FOUND: as Find. ALREADY_EXISTS: the
  // name is in use. RESOURCE_EXHAUSTED: too many models or bytes (RegisteredCounts::Add).
  absl::StatusOr<v1::RegisterModelResponse> Register(const std::string& name,
                                                     const v1::RopeSpec& spec,
                                                     const std::string& owner);

  // Removes a registered model, and the config_ids that only specs with its name had. Requests that
  // hold its entry keep it.
  // INVALID_ARGUMENT: an invalid name. NOT_FOUND: no such model. FAILED_PRECONDITION: the model is
  // a preset or comes from a flag. PERMISSION_DENIED: the model does not belong to `owner`.
  absl::Status Unregister(const std::string& name, const std::string& owner);

  // The first `count` models whose names follow `after`, ordered by name.
  std::vector<v1::Model> List(const std::string& after = "",
                              size_t count = std::numeric_limits<size_t>::max()) const;
  int64_t model_count() const {
    proto::ReaderMutexLock lock(&mutex_);
    return static_cast<int64_t>(models_.size());
  }

  // Increases when a model is unregistered. After that, an earlier result of Find for a spec that
  // names a model may no longer be valid.
  int64_t version() const { return version_.load(std::memory_order_acquire); }

 private:
  struct Model {
    std::string origin;
    std::variant<kernels::ModelConfig, kernels::LayerConfig> config;  // all layers, or the only one
    std::optional<kernels::Pairing> pairing;  // of a preset or a registration
    std::string owner;                        // of a registered model
    std::string composite_json;               // its file, if that has sub-configs
    int64_t bytes = 0;                        // approximate size of its config
    int64_t generation = 0;                   // unique to each registration; 0: not registered

    // Sets `bytes`, and `composite_json` if requests may choose another config of the file.
    // REQUIRES: `config` was read from `json`.
    void KeepComposite(std::string_view json);
  };
  using ModelPtr = std::shared_ptr<const Model>;

  // The entry of a config_id, and the number of cached specs that have this config_id. Their
  // entries have equal embeddings, but may differ in warnings and in the field that errors name.
  struct Named {
    std::shared_ptr<const RopeEntry> entry;
    int64_t specs = 0;
  };

  ModelRegistry() = default;
  absl::Status Add(const std::string& name, const std::string& origin, std::string_view json,
                   std::optional<kernels::Pairing> pairing);
  absl::StatusOr<std::shared_ptr<RopeEntry>> Read(const v1::RopeSpec& spec);
  // The model that `spec` names. Sets `field` to the path that errors of its config begin with.
  absl::StatusOr<ModelPtr> ReadModel(const v1::RopeSpec& spec, std::string& field);
  absl::StatusOr<ModelPtr> FindModel(const std::string& name) const;
  static absl::StatusOr<kernels::LayerConfig> LayerOf(const Model& model,
                                                      const kernels::LayerChoice& choice,
                                                      const std::string& field);
  // Validates `layer`, applies `compat`, and resolves the layer if it has a head_dim.
  static absl::Status Complete(kernels::LayerConfig layer,
                               std::optional<kernels::Pairing> explicit_pairing,
                               kernels::Compat compat, RopeEntry& entry);
  std::shared_ptr<const RopeEntry> Keep(const std::string& key, std::shared_ptr<RopeEntry> entry);
  void Forget(const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static int64_t CostOf(const std::string& key, const RopeEntry& entry);
  // Rejects a model with a layer that requests could not use by the model's name alone: an invalid
  // config, or no pairing. Adds the layers' warnings.
  static absl::Status CheckLayers(const Model& model,
                                  std::optional<kernels::Pairing> explicit_pairing,
                                  const std::string& field, std::vector<std::string>& warnings);
  absl::Status Insert(const std::string& name, Model model);
  static v1::Model Write(const std::string& name, const Model& model);

  std::atomic<int64_t> version_ = 0;

  // The cache. The key of a spec is its deterministic serialization, so that equal specs share one
  // entry. by_spec_ maps keys to entries, by_config_id_ maps config_ids to one of their entries
  // each, and oldest_first_ lists the keys in the order of insertion.
  //
  // Find holds the reader lock for one look-up and releases it before Read, which may take
  // milliseconds. Several threads may therefore read the same spec at once. The first one that gets
  // the writer lock in Keep inserts its entry; the others return that entry and discard theirs, so
  // that a spec has one entry.
  //
  // Between Read and Keep a model may be unregistered, and registered again under the same name.
  // Each registration has its own generation. Keep compares the entry's generation with the model's
  // under the writer lock, and does not cache the entry of an outdated model.
  mutable proto::SharedMutex mutex_;
  std::map<std::string, ModelPtr> models_ ABSL_GUARDED_BY(mutex_);
  RegisteredCounts registered_ ABSL_GUARDED_BY(mutex_);  // of models_
  int64_t last_generation_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, std::shared_ptr<const RopeEntry>> by_spec_
      ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Named> by_config_id_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> oldest_first_ ABSL_GUARDED_BY(mutex_);  // keys of by_spec_
  int64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_MODELS_MODEL_REGISTRY_H_
