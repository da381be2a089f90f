// Models by name, and the embeddings that specs name.
#ifndef ROPE_SERVER_MODELS_MODEL_REGISTRY_H_
#define ROPE_SERVER_MODELS_MODEL_REGISTRY_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/config/config_json.h"
#include "kernels/config/layer_config.h"
#include "kernels/config/rope_config.h"
#include "kernels/describe.h"
#include "kernels/dtype/dtype.h"
#include "kernels/frequencies/frequencies.h"
#include "proto/mutex.h"
#include "rope/v1/admin.pb.h"
#include "rope/v1/config.pb.h"
#include "server/clients/limits.h"
#include "server/limits.h"
#include "server/telemetry/log.h"

namespace rope::server {
namespace limits {

inline constexpr int64_t kConfigJsonBytesMax = 1 * kMiB;
// A larger one always goes to another thread; a smaller one only if its spec is not cached.
inline constexpr int64_t kConfigJsonHereBytesMax = 16 * kKiB;
// Memory of the embeddings of these layers: two types of layers have some 20 KiB.
inline constexpr int64_t kLayersBytesMax = 32 * kMiB;
// Specs whose resolution is kept, and so the most config_ids. The byte limits of specs and prepared
// requests cap their shares of --memory_bytes (DivideMemory).
inline constexpr int64_t kSpecsMax = 4096;

}  // namespace limits

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
  std::string composite_json;  // of a name: its file, if that has sub-configs

  // The embedding of the chosen layers. `field`: the path that errors of the config begin with.
  absl::StatusOr<kernels::LayerConfig> Layer(const kernels::LayerChoice& choice,
                                             const std::string& field) const;
};
using ModelPtr = std::shared_ptr<const Model>;

// Prefixes a kernel's error, which names a field of the config or of the choice of a part of it,
// with the request's field. `config_field`: the path of the config.
absl::Status InField(const std::string& config_field, const absl::Status& status);

// A wider embedding is resolved on another thread than the one that received its spec: 65,536
// channels take 5 milliseconds, and two to three times as long with xpos or precision hf.
inline constexpr int64_t kWidthHereMax = 2048;

// SpecCache: what specs resolve to, by their keys. It drops what was added first when it is full.
//
// Threading:  Thread-safe. A look-up takes the lock shared. Several threads may read one spec at
//             once: the first one that adds it inserts its value, and the others get that one.
// Ownership:  Values are shared and outlive their eviction.
// Limits:     limits::kSpecsMax values, and the bytes that the constructor gets.

class SpecCache {
 public:
  // One of the pointers is set, of a value that is kept.
  struct Value {
    std::shared_ptr<const RopeEntry> entry = {};     // of a spec
    std::shared_ptr<const RopeEntries> layers = {};  // of a spec with first_layer, for each layer
    ModelPtr sub_config = {};                        // of a model: its sub-config, parsed
    int64_t bytes = 0;                               // of memory, without the key
  };

  explicit SpecCache(int64_t bytes_max) : bytes_max_(bytes_max) {}

  // Without a pointer: no such value.
  Value Find(const std::string& key) const;
  // The entry of a spec with this config_id; null: none is kept.
  std::shared_ptr<const RopeEntry> FindId(const std::string& config_id) const;
  // Adds a value, unless the key has one, and returns the key's value. A value above the bound is
  // returned and not kept.
  Value Add(const std::string& key, Value value);

  int64_t bytes() const {
    proto::ReaderMutexLock lock(&mutex_);
    return bytes_;
  }
  int64_t bytes_max() const { return bytes_max_; }

 private:
  // The entry of a config_id, and the number of specs that have this config_id. Their entries have
  // equal embeddings, but may differ in warnings and in the field that errors name.
  struct Named {
    std::shared_ptr<const RopeEntry> entry;
    int64_t specs = 0;
  };

  void Drop(const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t bytes_max_;
  mutable proto::SharedMutex mutex_;
  absl::flat_hash_map<std::string, Value> values_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Named> by_config_id_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> oldest_first_ ABSL_GUARDED_BY(mutex_);  // keys of values_
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

// ModelRegistry: resolves a rope.v1.RopeSpec to a rotary embedding. It knows the presets (by each
// of their names, see kernels::FindPreset), the operator's --model files, which may take any name
// of a preset, and the config_ids that Describe returned. It caches resolved specs, so that a
// repeated spec costs one look-up.
//
//   Find -> cached -> RopeEntry
//        -> not cached -> ReadSource (parse) -> ReadEntry (pick the layer, validate, resolve)
//           -> SpecCache::Add -> RopeEntry
//
// Threading:  Thread-safe. Models never change. Nothing is parsed or resolved under a lock.
// Ownership:  Entries are immutable and shared. They outlive their eviction.
// Errors:     INVALID_ARGUMENT: several alternatives or none, an invalid config. NOT_FOUND: no such
//             model or config_id. RESOURCE_EXHAUSTED: a config_json that is too long.
// Limits:     Of cached specs: see SpecCache.

// RESOURCE_EXHAUSTED, of `field`: the embeddings of the layers of a request, or of a file, have
// together more bytes than limits::kLayersBytesMax.
absl::Status CheckLayersBytes(absl::string_view field, int64_t bytes);

class ModelRegistry {
 public:
  // A model file of the operator (--model=NAME=CONFIG.json).
  struct ModelFile {
    std::string name;
    std::string config_json;
  };

  struct Named {
    ModelPtr model;
    v1::Model shown;    // as ListModels describes it
    int64_t width = 0;  // the most channels that a layer type names
  };

  // What Create found of a ModelFile.
  struct FileReport {
    std::string name;
    bool replaces_preset = false;
    std::vector<std::string> warnings = {};  // of all its layers

    // What the operator should know: at most kWarningsShown warnings, and how many were left out.
    static constexpr size_t kWarningsShown = 16;
    std::vector<LogLine> LogLines() const;
  };

  // Holds the presets and the files; a file may replace a preset. INVALID_ARGUMENT: an invalid name
  // or config, a duplicate name, a file that does not tell a layer's pairing.
  static absl::StatusOr<std::unique_ptr<ModelRegistry>> Create(
      absl::Span<const ModelFile> files, int64_t spec_bytes_max = limits::kSpecBytesMax);

  // Returns the cached entry of `spec`, or parses and resolves it. The entry's config_id is valid
  // while the registry caches the entry. NeedsSideThread, unless it may take long: reading the spec
  // takes long (TakesLongToRead), or it is not cached and is wider than kWidthHereMax, or only
  // parsing would tell how wide it is.
  absl::StatusOr<std::shared_ptr<const RopeEntry>> Find(const v1::RopeSpec& spec,
                                                        bool may_take_long = true);

  // Finds the entries of `count` layers from spec.first_layer on. Layers of one type share one.
  // INVALID_ARGUMENT: as Find, for any of the layers; one does not rotate; CheckLayersBytes.
  // REQUIRES: the spec has a first_layer, and no layer and no layer_type; count is above 0.
  absl::StatusOr<RopeEntries> FindLayers(const v1::RopeSpec& spec, int64_t count);

  // A copy of the config that `spec` names, with all its layers unless it picks some, and without
  // the spec's own pairing. `field`: set to the path that errors of the config begin with.
  // INVALID_ARGUMENT, NOT_FOUND: as Find; the spec has a compat or a precision.
  absl::StatusOr<Model> CopyOf(const v1::RopeSpec& spec, std::string& field);

  // The presets and files, by name.
  const std::map<std::string, Named>& models() const { return models_; }

  // The memory that the cached specs take.
  int64_t spec_bytes() const { return cache_.bytes(); }
  int64_t spec_bytes_max() const { return cache_.bytes_max(); }
  // One for each file, in the order of Create.
  const std::vector<FileReport>& file_reports() const { return file_reports_; }

 private:
  // What the entries of a spec are read from.
  struct Source {
    ModelPtr model;
    std::string field = {};  // the path that errors of the config begin with
    std::optional<kernels::Pairing> pairing = {};
    kernels::Compat compat = kernels::Compat::kDefault;
    kernels::Precision precision = kernels::Precision::kExact;
  };

  explicit ModelRegistry(int64_t spec_bytes_max) : cache_(spec_bytes_max) {}
  // False only if the spec alone, or the model that it names, says so.
  bool MayBeWide(const v1::RopeSpec& spec) const;
  absl::Status AddFile(const ModelFile& file);
  // Returns whether the model replaces another one of this name.
  bool Add(const std::string& name, const std::string& origin, const ModelPtr& model);
  absl::StatusOr<Source> ReadSource(const v1::RopeSpec& spec);
  // The model that `spec` names. Sets `field` to the path that errors of its config begin with.
  absl::StatusOr<ModelPtr> ReadModel(const v1::RopeSpec& spec, std::string& field);
  absl::StatusOr<ModelPtr> FindModel(const std::string& name) const;
  // The model of that name; else the one with the name of the preset that FindPreset gives. Null:
  // there is none.
  const Named* FindNamed(const std::string& name) const;
  // Validates `layer`, applies the compat, and resolves the layer if it has a head_dim.
  static absl::StatusOr<std::shared_ptr<const RopeEntry>> ReadEntry(const Source& source,
                                                                    kernels::LayerConfig layer);
  // Rejects a model with a layer that requests could not use by the model's name alone: an invalid
  // config, or no pairing. Adds the layers' warnings.
  static absl::Status CheckLayers(const ModelPtr& model, std::vector<std::string>& warnings);

  // Only Create writes these two.
  std::vector<FileReport> file_reports_;
  std::map<std::string, Named> models_;
  // The key of a spec is its deterministic serialization, so that equal specs share one entry.
  SpecCache cache_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_MODELS_MODEL_REGISTRY_H_
