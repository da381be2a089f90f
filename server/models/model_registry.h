// RegisteredCounts: bounds the number of registered models and the memory that they keep, in total
// and per owner (peers.h). One owner gets at most half of each bound, so that others can register
// too.
//
// Threading:  Not thread-safe: ModelRegistry guards it with its lock.
// Errors:     RESOURCE_EXHAUSTED: a bound is reached. It carries no retry delay, because waiting
//             does not help.
// Limits:     limits::kRegisteredModelsMax, the bytes that the constructor gets, and half of each
//             per owner. One entry per owner that has a model.
#ifndef ROPE_SERVER_MODELS_MODEL_REGISTRY_H_
#define ROPE_SERVER_MODELS_MODEL_REGISTRY_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/compat/rope_readings.h"
#include "kernels/config/layer_config.h"
#include "proto/mutex.h"
#include "rope/v1/admin.pb.h"
#include "rope/v1/config.pb.h"
#include "server/memory/limits.h"
#include "server/models/limits.h"
#include "server/models/model.h"

namespace rope::server {

class RegisteredCounts {
 public:
  explicit RegisteredCounts(int64_t bytes_max) : bytes_max_(bytes_max) {}

  // Counts one more model, unless a bound is reached.
  // `models_max`: of the owner, below what every owner may have; unset: that.
  absl::Status Add(const std::string& owner, int64_t bytes,
                   std::optional<int64_t> models_max = std::nullopt);
  // REQUIRES: the model was added.
  void Remove(const std::string& owner, int64_t bytes);

  int64_t bytes() const { return all_.bytes; }

 private:
  struct Count {
    int64_t models = 0;
    int64_t bytes = 0;
  };

  const int64_t bytes_max_;
  Count all_;
  absl::flat_hash_map<std::string, Count> by_owner_;
};

// SpecCache: what specs resolve to, by their keys. It drops what was added first when it is full.
//
// Threading:  Not thread-safe: ModelRegistry guards it with its lock.
// Ownership:  Values are shared and outlive their eviction.
// Limits:     limits::kSpecsMax values, and the bytes that the constructor gets.

class SpecCache {
 public:
  // One of the pointers is set.
  struct Value {
    std::shared_ptr<const RopeEntry> entry = {};     // of a spec
    std::shared_ptr<const RopeEntries> layers = {};  // of a spec with first_layer, for each layer
    ModelPtr sub_config = {};                        // of a model: its sub-config, parsed
    int64_t generation = 0;                          // of the model that the key names; 0: of none
    int64_t bytes = 0;                               // of memory, without the key
  };

  explicit SpecCache(int64_t bytes_max) : bytes_max_(bytes_max) {}

  // Null: no such value.
  const Value* Find(const std::string& key) const;
  // The entry of a spec with this config_id; null: none is kept.
  std::shared_ptr<const RopeEntry> FindId(const std::string& config_id) const;
  // Adds a value, unless the key has one, and returns the key's value. A value above the bound is
  // returned and not kept.
  Value Add(const std::string& key, Value value);
  // Drops the values of a model.
  void Forget(int64_t generation);

  int64_t bytes() const { return bytes_; }
  int64_t bytes_max() const { return bytes_max_; }

 private:
  // The entry of a config_id, and the number of specs that have this config_id. Their entries have
  // equal embeddings, but may differ in warnings and in the field that errors name.
  struct Named {
    std::shared_ptr<const RopeEntry> entry;
    int64_t specs = 0;
  };

  void Drop(const std::string& key);

  const int64_t bytes_max_;
  absl::flat_hash_map<std::string, Value> values_;
  absl::flat_hash_map<std::string, Named> by_config_id_;
  std::deque<std::string> oldest_first_;  // keys of values_
  int64_t bytes_ = 0;
};

// ModelRegistry: resolves a rope.v1.RopeSpec to a rotary embedding. It knows the presets (by each
// of their names, see kernels::FindPreset), the operator's --model files, which may take any name
// of a preset, the models that callers registered, and the config_ids that Describe returned. It
// caches resolved specs, so that a repeated spec costs one look-up.
//
//   Find -> cached -> RopeEntry
//        -> not cached -> ReadSource (parse) -> ReadEntry (pick the layer, validate, resolve)
//           -> Keep -> RopeEntry
//
// Threading:  Thread-safe. A hit takes a shared lock. Nothing is parsed or resolved under a lock.
// Ownership:  Entries are immutable and shared. They outlive their eviction and their model.
// Errors:     INVALID_ARGUMENT: several alternatives or none, an invalid config. NOT_FOUND: no such
//             model or config_id. RESOURCE_EXHAUSTED: a config_json that is too long.
// Limits:     Of cached specs: see SpecCache. Of registered models: see RegisteredCounts.

// RESOURCE_EXHAUSTED, of `field`: the embeddings of the layers of a request, or of a registered
// model, have together more bytes than limits::kLayersBytesMax.
absl::Status CheckLayersBytes(absl::string_view field, int64_t bytes);

class ModelRegistry {
 public:
  // A model file of the operator (--model=NAME=CONFIG.json).
  struct ModelFile {
    std::string name;
    std::string config_json;
  };

  struct Options {
    int64_t spec_bytes_max = limits::kSpecBytesMax;
    int64_t registered_bytes_max = limits::kRegisteredBytesMax;
  };

  // What Create found of a ModelFile.
  struct FileReport {
    std::string name;
    bool replaces_preset = false;
    std::vector<std::string> warnings = {};  // of all its layers
  };

  // Holds the presets and the files; a file may replace a preset. INVALID_ARGUMENT: an invalid name
  // or config, a duplicate name, a file that does not tell a layer's pairing.
  static absl::StatusOr<std::unique_ptr<ModelRegistry>> Create(absl::Span<const ModelFile> files,
                                                               const Options& options);
  static absl::StatusOr<std::unique_ptr<ModelRegistry>> Create(absl::Span<const ModelFile> files) {
    return Create(files, Options());
  }

  // Returns the cached entry of `spec`, or parses and resolves it. The entry's config_id is valid
  // while the registry caches the entry. NeedsSideThread, unless it may take long: reading the spec
  // takes long (TakesLongToRead), or it is not cached and is wider than kWidthHereMax, or only
  // parsing would tell how wide it is.
  absl::StatusOr<std::shared_ptr<const RopeEntry>> Find(const v1::RopeSpec& spec,
                                                        bool may_take_long = true);

  // The same for `count` layers from spec.first_layer on. Layers of one type share an entry.
  // INVALID_ARGUMENT: as Find, for any of the layers; one does not rotate; CheckLayersBytes.
  // REQUIRES: the spec has a first_layer, and no layer and no layer_type; count is above 0.
  absl::StatusOr<RopeEntries> FindLayers(const v1::RopeSpec& spec, int64_t count);

  // A copy of the config that `spec` names, with all its layers unless it picks some, and without
  // the spec's own pairing. `field`: set to the path that errors of the config begin with.
  // INVALID_ARGUMENT, NOT_FOUND: as Find; the spec has a compat or a precision: "got it in a
  // <place>, want <want>".
  absl::StatusOr<Model> CopyOf(const v1::RopeSpec& spec, absl::string_view place,
                               absl::string_view want, std::string& field);

  // Adds a model: a copy of the config that `spec` names, with all its layers unless the spec picks
  // one. Every layer must have a pairing. It is resolved now, unless its head_dim comes with a
  // tensor. The model belongs to `owner` (peers.h); every client may use it.
  // INVALID_ARGUMENT: as Find; an invalid name, no pairing. NOT_FOUND: as Find. ALREADY_EXISTS: the
  // name is in use. RESOURCE_EXHAUSTED: too many models or bytes (RegisteredCounts::Add).
  absl::StatusOr<v1::RegisterModelResponse> Register(
      const std::string& name, const v1::RopeSpec& spec, const std::string& owner,
      std::optional<int64_t> models_max = std::nullopt);

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

  // Of memory: the cached specs, and the registered models.
  int64_t spec_bytes() const {
    proto::ReaderMutexLock lock(&mutex_);
    return cache_.bytes();
  }
  int64_t registered_bytes() const {
    proto::ReaderMutexLock lock(&mutex_);
    return registered_.bytes();
  }
  const Options& options() const { return options_; }
  // One for each file, in the order of Create.
  const std::vector<FileReport>& file_reports() const { return file_reports_; }

  // Whether the model may be unregistered, or has been: presets and models of flags stay.
  bool MayGo(const std::string& name) const;
  // Increases when a model is unregistered. After that, an earlier result of Find for a spec that
  // names a model may no longer be valid.
  int64_t version() const { return version_.load(std::memory_order_acquire); }

 private:
  // What the entries of a spec are read from.
  struct Source {
    ModelPtr model;
    std::string field;  // the path that errors of the config begin with
    std::optional<kernels::Pairing> pairing;
    kernels::Compat compat = kernels::Compat::kDefault;
    kernels::Precision precision = kernels::Precision::kExact;
  };

  explicit ModelRegistry(const Options& options)
      : options_(options),
        registered_(options.registered_bytes_max),
        cache_(options.spec_bytes_max) {}
  // False only if the spec alone, or the model that it names, says so.
  bool MayBeWide(const v1::RopeSpec& spec) const;
  // Null: not cached. `key`: CanonicalBytes of a spec without config_id.
  std::shared_ptr<const RopeEntry> FindCached(const std::string& key) const;
  absl::Status AddFile(const ModelFile& file);
  // Returns whether the model replaces another one of this name.
  bool Add(const std::string& name, Model model);
  absl::StatusOr<Source> ReadSource(const v1::RopeSpec& spec);
  // The model that `spec` names. Sets `field` to the path that errors of its config begin with.
  absl::StatusOr<ModelPtr> ReadModel(const v1::RopeSpec& spec, std::string& field);
  absl::StatusOr<ModelPtr> FindModel(const std::string& name) const;
  // The model of that name; else the one with the name of the preset that FindPreset gives. Null:
  // there is none.
  ModelPtr FindNamed(const std::string& name) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // The preset or --model file that was probably meant. Empty: none is near.
  std::string Nearest(const std::string& name) const;
  static absl::StatusOr<std::shared_ptr<const RopeEntry>> ReadEntry(const Source& source,
                                                                    kernels::LayerConfig layer);
  // Validates `layer`, applies `compat`, and resolves the layer if it has a head_dim.
  static absl::Status Complete(kernels::LayerConfig layer,
                               std::optional<kernels::Pairing> explicit_pairing,
                               kernels::Compat compat, RopeEntry& entry);
  // The key's value in the cache. `name`: of the value's model.
  SpecCache::Value Keep(const std::string& key, const std::string& name, SpecCache::Value value);
  // Rejects a model with a layer that requests could not use by the model's name alone: an invalid
  // config, or no pairing. Adds the layers' warnings.
  static absl::Status CheckLayers(const Model& model,
                                  std::optional<kernels::Pairing> explicit_pairing,
                                  const std::string& field, std::vector<std::string>& warnings);
  absl::Status Insert(const std::string& name, Model model, std::optional<int64_t> models_max);

  const Options options_;
  std::vector<FileReport> file_reports_;  // only Create writes it
  std::atomic<int64_t> version_ = 0;
  // Whether there ever was a model wider than kWidthHereMax. If not, no name is looked up for it.
  std::atomic<bool> had_wide_models_ = false;

  // The key of a spec is its deterministic serialization, so that equal specs share one entry.
  //
  // Find holds the reader lock for one look-up and releases it before it reads the spec, which may
  // take milliseconds. Several threads may therefore read the same spec at once. The first one that
  // gets the writer lock in Keep inserts its entry; the others return that entry and discard
  // theirs, so that a spec has one entry.
  //
  // Between reading and Keep a model may be unregistered, and registered again under the same name.
  // Each registration has its own generation. Keep compares the value's generation with the model's
  // under the writer lock, and does not cache the value of an outdated model.
  mutable proto::SharedMutex mutex_;
  std::map<std::string, ModelPtr> models_ ABSL_GUARDED_BY(mutex_);
  RegisteredCounts registered_ ABSL_GUARDED_BY(mutex_);  // of models_
  int64_t last_generation_ ABSL_GUARDED_BY(mutex_) = 0;
  SpecCache cache_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rope::server

#endif  // ROPE_SERVER_MODELS_MODEL_REGISTRY_H_
