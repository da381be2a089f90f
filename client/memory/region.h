// Region: memory that a connection shares with its server, as requests on that connection name it.
//
// Either the program's own arena, whose slots are named where they lie, or staging memory of the
// connection, to which tensors that lie elsewhere are copied (staged_run.h).
//
// Threading:  A value.
// Ownership:  Shares the memory and the ids.
#ifndef ROPE_CLIENT_MEMORY_REGION_H_
#define ROPE_CLIENT_MEMORY_REGION_H_

#include <memory>

#include "client/memory/arena_memory.h"
#include "client/memory/region_ids.h"

namespace rope::client {

struct Region {
  std::shared_ptr<ArenaMemory> memory = nullptr;
  std::shared_ptr<RegionIds> ids = nullptr;  // null: the server knows none
  bool is_staging = false;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_MEMORY_REGION_H_
