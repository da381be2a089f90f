// AwaitFence: the steps of Client::Fence on one connection.
//
//   1. Register the region under a new id; later requests use that id.
//   2. Wait until every local call that names an old id has ended.
//   3. Unregister the old ids. The server answers the last one when no request uses the memory any
//      more.
//
// A request of an abandoned call may reach the server after step 3. It then names an unknown id, so
// the server touches nothing.
//
// Threading:  Blocks the calling thread. Fences of one connection take turns.
// Errors:     DEADLINE_EXCEEDED: calls that name an old id have not ended; the next fence continues
//             from there. NOT_FOUND, UNAVAILABLE: the connection on which the region was registered
//             is lost. Otherwise the server's status.
#ifndef ROPE_CLIENT_CALLS_FENCE_H_
#define ROPE_CLIENT_CALLS_FENCE_H_

#include "client/memory/region.h"
#include "client/transport/stub.h"
#include "rope/status.h"

namespace rope::client {

// Waits until nobody holds a lease of `ids` that was acquired before. DEADLINE_EXCEEDED: as below.
Status AwaitLeases(RegionIds& ids, RegionIds::Clock::time_point deadline);

Status AwaitFence(const Stub& stub, RegionIds& ids, RegionIds::Clock::time_point deadline);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CALLS_FENCE_H_
