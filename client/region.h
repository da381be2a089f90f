// Region: memory that a connection shares with its server, as requests on that connection name it.
//
// Either the program's own arena, whose slots are named where they lie, or staging memory of the
// connection, to which tensors that lie elsewhere are copied (staged_run.h).
//
// Threading:  A value.
// Ownership:  Shares the memory.
#ifndef ROPE_CLIENT_REGION_H_
#define ROPE_CLIENT_REGION_H_

#include <cstdint>
#include <memory>

#include "client/arena_memory.h"

namespace rope::client {

struct Region {
  std::shared_ptr<ArenaMemory> memory = nullptr;
  uint64_t id = 0;  // 0: the server knows none
  bool is_staging = false;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_REGION_H_
