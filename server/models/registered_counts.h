// RegisteredCounts: how many models are registered and how many bytes of configs they came with,
// together and by owner (peers.h), each within its bounds. One owner gets at most half of either,
// so that another can register too.
//
// Threading:  Confined to who locks it.
// Errors:     RESOURCE_EXHAUSTED: one bound or the other; waiting does not help.
// Limits:     limits::kRegisteredModelsMax and kRegisteredBytesMax, and half of each; an entry for
//             each owner of a model.
#ifndef ROPE_SERVER_MODELS_REGISTERED_COUNTS_H_
#define ROPE_SERVER_MODELS_REGISTERED_COUNTS_H_

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

namespace rope::server {

class RegisteredCounts {
 public:
  // Counts one more model, if there is room for it.
  absl::Status Add(const std::string& owner, int64_t bytes);
  // REQUIRES: it was added.
  void Remove(const std::string& owner, int64_t bytes);

 private:
  struct Count {
    int64_t models = 0;
    int64_t bytes = 0;
  };

  Count all_;
  absl::flat_hash_map<std::string, Count> by_owner_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_MODELS_REGISTERED_COUNTS_H_
