// Region: the memory that a connection shares with its server, and its id in requests.
//
// A region is either the program's arena, whose slots requests name directly, or staging memory of
// the connection, to which other tensors are copied (staged_run.h).
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
  std::shared_ptr<RegionIds> ids = nullptr;  // null: no region is registered with the server
  bool is_staging = false;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_MEMORY_REGION_H_
