// The control plane: models that clients register, table pages built in advance, shared memory.
//
// Threading:  Values.
#ifndef ROPE_ADMIN_H_
#define ROPE_ADMIN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rope/config.h"
#include "rope/describe.h"
#include "rope/tensor.h"

namespace rope::client {

struct RegisteredModel {
  Model model = {};
  std::vector<std::string> warnings = {};  // about its config
};

// The table pages of the positions [begin, end).
struct WarmUpRequest {
  RopeSpec rope = {};
  int64_t begin = 0;
  int64_t end = 0;
  // Only with Precision::kHf: the tensors' dtype. Unset: fp32.
  std::optional<DType> dtype = {};
};

struct WarmUpReply {
  int64_t pages = 0;  // of 64 positions, including those that were built already
  int64_t bytes = 0;  // of their values
};

// Memory of this connection that the server has mapped: the arena, or staging memory.
struct SharedRegion {
  uint64_t id = 0;
  int64_t bytes = 0;
  std::string kind = {};  // "memfd"
};

}  // namespace rope::client

#endif  // ROPE_ADMIN_H_
