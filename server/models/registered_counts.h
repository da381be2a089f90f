// RegisteredCounts: bounds the number of registered models and the memory that they keep, in total
// and per owner (peers.h). One owner gets at most half of each bound, so that others can register
// too.
//
// Threading:  Not thread-safe: ModelRegistry guards it with its lock.
// Errors:     RESOURCE_EXHAUSTED: a bound is reached. It carries no retry delay, because waiting
//             does not help.
// Limits:     limits::kRegisteredModelsMax, the bytes that the constructor gets, and half of each
//             per owner. One entry per owner that has a model.
#ifndef ROPE_SERVER_MODELS_REGISTERED_COUNTS_H_
#define ROPE_SERVER_MODELS_REGISTERED_COUNTS_H_

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

namespace rope::server {

class RegisteredCounts {
 public:
  explicit RegisteredCounts(int64_t bytes_max) : bytes_max_(bytes_max) {}

  // Counts one more model, unless a bound is reached.
  absl::Status Add(const std::string& owner, int64_t bytes);
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

}  // namespace rope::server

#endif  // ROPE_SERVER_MODELS_REGISTERED_COUNTS_H_
