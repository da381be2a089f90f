// What Client::Fence does on one connection: it gives the shared memory another id, waits for the
// calls that name the one before, and has the server unregister that and say when it is done with
// it. A call that was given up may reach the server later than that; it then names an id that the
// server does not know, and touches nothing.
//
// Threading:  Blocks the calling thread. Fences of one connection take turns.
// Errors:     DEADLINE_EXCEEDED: calls that named the memory before are not over yet; the next
//             fence goes on from there. NOT_FOUND, UNAVAILABLE: the connection that the memory was
//             registered on is lost. As the server says them.
#ifndef ROPE_CLIENT_CALLS_FENCE_H_
#define ROPE_CLIENT_CALLS_FENCE_H_

#include <chrono>

#include "client/memory/region_ids.h"
#include "client/transport/stub.h"
#include "rope/status.h"

namespace rope::client {

Status AwaitFence(const Stub& stub, RegionIds& ids, std::chrono::microseconds timeout);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CALLS_FENCE_H_
