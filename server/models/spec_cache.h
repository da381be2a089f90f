// SpecCache: what specs resolve to, by their keys. It drops what was added first when it is full.
//
// Threading:  Not thread-safe: ModelRegistry guards it with its lock.
// Ownership:  Values are shared and outlive their eviction.
// Limits:     limits::kSpecsMax values, and the bytes that the constructor gets.
#ifndef ROPE_SERVER_MODELS_SPEC_CACHE_H_
#define ROPE_SERVER_MODELS_SPEC_CACHE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "server/models/model.h"
#include "server/models/rope_entry.h"

namespace rope::server {

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

}  // namespace rope::server

#endif  // ROPE_SERVER_MODELS_SPEC_CACHE_H_
