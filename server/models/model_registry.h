// ModelRegistry: from a rope.v1.RopeSpec to a resolved rotary embedding. Knows the presets, the
// operator's --model files, the models that callers registered and the config_ids that Describe
// gave out, and keeps what it resolved, so that a repeated spec costs a look-up.
//
// Threading:  Thread-safe. Hits take a shared lock; nothing is parsed under a lock.
// Ownership:  Entries are immutable and shared; they outlive their eviction and their model.
// Errors:     INVALID_ARGUMENT: alternatives given together or not at all, a bad config. NOT_FOUND:
//             model or config_id.
// Limits:     limits::kSpecsMax specs of together kSpecBytesMax bytes are kept; the oldest go
//             first. Of registered models: as RegisteredCounts.
#ifndef ROPE_SERVER_MODELS_MODEL_REGISTRY_H_
#define ROPE_SERVER_MODELS_MODEL_REGISTRY_H_

#include <atomic>
#include <deque>
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
#include "kernels/frequencies/frequencies.h"
#include "proto/mutex.h"
#include "rope/v1/admin.pb.h"
#include "rope/v1/config.pb.h"
#include "server/models/registered_counts.h"

namespace rope::server {

// One spec, read and resolved.
class RopeEntry {
 public:
  const std::string& config_id() const { return config_id_; }
  // With its config as the spec's `compat` reads it.
  const kernels::LayerConfig& layer() const { return layer_; }
  // As the spec states it.
  const kernels::RopeConfig& stated_config() const { return stated_config_; }
  // Explicit, else what the preset or model_type says, else nothing.
  std::optional<kernels::Pairing> pairing() const { return pairing_; }
  const std::vector<std::string>& warnings() const { return warnings_; }

  // The numbers for heads of `head_dim` channels, which a config without head_dim takes.
  // INVALID_ARGUMENT: the config has none and `head_dim` is absent or does not fit it.
  absl::StatusOr<std::shared_ptr<const kernels::ResolvedRope>> Resolve(
      std::optional<int64_t> head_dim) const;

 private:
  friend class ModelRegistry;

  std::string config_id_;
  std::string field_;       // that the config came in, with a dot, for errors
  std::string model_;       // that it came from; empty: none
  int64_t generation_ = 0;  // of the model
  kernels::LayerConfig layer_;
  kernels::RopeConfig stated_config_;
  std::optional<kernels::Pairing> pairing_;
  std::vector<std::string> warnings_;
  std::shared_ptr<const kernels::ResolvedRope> resolved_;  // null: the config has no head_dim
};

class ModelRegistry {
 public:
  // A model file of the operator's (--model=NAME=CONFIG.json).
  struct ModelFile {
    std::string name;
    std::string config_json;
  };

  // Presets and files; a file may replace a preset. `instance_id` goes into every config_id.
  // INVALID_ARGUMENT: a bad name or config, a name twice.
  static absl::StatusOr<std::unique_ptr<ModelRegistry>> Create(const std::string& instance_id,
                                                               absl::Span<const ModelFile> files);

  // Reads and resolves `spec`, or finds it. The entry's config_id is valid for as long as the
  // registry keeps it.
  absl::StatusOr<std::shared_ptr<const RopeEntry>> Find(const v1::RopeSpec& spec);

  // Adds a model: a copy of what `spec` names, with all its layers unless it picks one. Every layer
  // is resolved, as far as it does not wait for a tensor's head_dim, and has to have a pairing. It
  // belongs to `owner` (peers.h); every client may use it.
  // INVALID_ARGUMENT, NOT_FOUND: as Find; a bad name, no pairing. ALREADY_EXISTS: the name.
  // RESOURCE_EXHAUSTED: too many, or too large together; as RegisteredCounts::Add.
  absl::StatusOr<v1::RegisterModelResponse> Register(const std::string& name,
                                                     const v1::RopeSpec& spec,
                                                     const std::string& owner);

  // Removes a registered model, and the config_ids that were made from its name. Requests that have
  // it already keep it. A model of the same name that comes later has other config_ids.
  // INVALID_ARGUMENT: a bad name. NOT_FOUND. FAILED_PRECONDITION: a preset, or of a flag.
  // PERMISSION_DENIED: it does not belong to `owner`.
  absl::Status Unregister(const std::string& name, const std::string& owner);

  // All models, by name.
  std::vector<v1::Model> List() const;
  int64_t model_count() const {
    proto::ReaderMutexLock lock(&mutex_);
    return static_cast<int64_t>(models_.size());
  }

  // Grows when a model is unregistered or a config_id forgotten: what was found before may not be
  // found any more.
  int64_t version() const { return version_.load(std::memory_order_acquire); }

 private:
  struct Model {
    std::string origin;
    std::variant<kernels::ModelConfig, kernels::LayerConfig> config;  // all layers, or the only one
    std::optional<kernels::Pairing> pairing;  // of a preset or a registration
    std::string owner;                        // of a registered model
    int64_t bytes = 0;                        // of its config, about
    int64_t generation = 0;                   // of a registered model: no other one's, never 0
  };
  using ModelPtr = std::shared_ptr<const Model>;

  explicit ModelRegistry(const std::string& instance_id) : instance_id_(instance_id) {}
  absl::Status Add(const std::string& name, const std::string& origin, std::string_view json,
                   std::optional<kernels::Pairing> pairing);
  absl::StatusOr<std::shared_ptr<RopeEntry>> Read(const v1::RopeSpec& spec);
  // What `spec` names; `field` is where its errors lie.
  absl::StatusOr<ModelPtr> ReadModel(const v1::RopeSpec& spec, std::string& field);
  static absl::StatusOr<kernels::LayerConfig> LayerOf(const Model& model,
                                                      const kernels::LayerChoice& choice,
                                                      const std::string& field);
  // Checks and resolves the entry's layer.
  static absl::Status Complete(std::optional<kernels::Pairing> explicit_pairing,
                               kernels::Compat compat, RopeEntry& entry);
  std::shared_ptr<const RopeEntry> Keep(const std::string& key, std::shared_ptr<RopeEntry> entry);
  void Forget(const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static int64_t CostOf(const std::string& key, const RopeEntry& entry);
  std::string MakeConfigId(const std::string& key, int64_t generation) const;
  // Refuses a layer that could not rotate by its name alone.
  static absl::Status CheckLayers(const Model& model,
                                  std::optional<kernels::Pairing> explicit_pairing,
                                  const std::string& field, std::vector<std::string>& warnings);
  absl::Status Insert(const std::string& name, Model model);
  static v1::Model Write(const std::string& name, const Model& model);

  const std::string instance_id_;
  std::atomic<int64_t> version_ = 0;

  mutable proto::SharedMutex mutex_;
  std::map<std::string, ModelPtr> models_ ABSL_GUARDED_BY(mutex_);
  RegisteredCounts registered_ ABSL_GUARDED_BY(mutex_);  // of models_
  int64_t last_generation_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, std::shared_ptr<const RopeEntry>> by_spec_
      ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::shared_ptr<const RopeEntry>> by_config_id_
      ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> oldest_first_ ABSL_GUARDED_BY(mutex_);  // keys of by_spec_
  int64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_MODELS_MODEL_REGISTRY_H_
