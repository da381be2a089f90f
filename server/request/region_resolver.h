// RegionResolver: resolves the memory regions that a request names. Before a request is validated,
// its arrays in regions become payloads like inline ones; afterwards each output gets its place.
//
//   1. Read: a memfd's bytes are referred to where they are; those of a POSIX object are copied
//      into pooled memory, because the object may shrink. Of a request that was recognised it
//      reads the spans, and of any other the message.
//   2. Place: where results go, and that nothing there is in anybody's way.
//   3. Store: after the rotation, outputs in POSIX objects are copied to their place.
//
// Threading:  Thread-safe.
// Ownership:  The request holds the regions that it uses.
// Errors:     INVALID_ARGUMENT: two sources of one array; an output that overlaps an input other
//             than its own, another output, or itself. OUT_OF_RANGE: a span past its region.
//             NOT_FOUND: no such region in the session. FAILED_PRECONDITION: shared memory is off;
//             an object that shrank. RESOURCE_EXHAUSTED: more to copy than `copied_bytes_max`.
#ifndef ROPE_SERVER_REQUEST_REGION_RESOLVER_H_
#define ROPE_SERVER_REQUEST_REGION_RESOLVER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "server/memory/buffer_pool.h"
#include "server/memory/regions.h"
#include "server/request/request.h"

namespace rope::server {

class RegionResolver {
 public:
  // Both must outlive it. `copied_bytes_max` bounds what one request has copied from POSIX objects.
  RegionResolver(const RegionTable& regions, BufferPool& pool, int64_t copied_bytes_max)
      : regions_(regions), pool_(pool), copied_bytes_max_(copied_bytes_max) {}

  // Fills inputs and region_copies of the request, and the payloads of its arrays.
  absl::Status Read(Request& request) const;

  // Fills the places of the plan's outputs. REQUIRES: Read; the plan stands.
  absl::Status Place(Request& request) const;

 private:
  class Reader;

  const RegionTable& regions_;
  BufferPool& pool_;
  const int64_t copied_bytes_max_;
};

// Copies outputs that were made in pooled memory to the POSIX objects that they belong in.
absl::Status StoreOutputs(const Request& request);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_REGION_RESOLVER_H_
