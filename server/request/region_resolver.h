// RegionResolver: resolves the memory regions that a request names.
//
//   1. Source: finds arrays in regions while the request is validated, once their size is known. A
//      memfd's bytes are referred to where they are; those of a POSIX object are copied into pooled
//      memory, because the object may shrink.
//   2. Place: finds the places of outputs, and refuses illegal overlaps (Errors, below).
//   3. StoreOutputs: after the rotation, outputs in POSIX objects are copied to their place.
//
// Threading:  Thread-safe; a Source is confined to its owner.
// Ownership:  The request holds the regions that it uses.
// Errors:     INVALID_ARGUMENT: an output that overlaps an input other than its own, another
//             output, or itself. OUT_OF_RANGE: a span past its region. NOT_FOUND: no such region in
//             the session. FAILED_PRECONDITION: shared memory is off; an object that shrank.
//             RESOURCE_EXHAUSTED: more to copy than `copied_bytes_max`. NeedsSideThread: more than
//             the receiving thread may copy.
#ifndef ROPE_SERVER_REQUEST_REGION_RESOLVER_H_
#define ROPE_SERVER_REQUEST_REGION_RESOLVER_H_

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "server/memory/buffer_pool.h"
#include "server/memory/regions.h"
#include "server/request/plan.h"
#include "server/request/request.h"

namespace rope::server {

class RegionResolver {
 public:
  // Finds the arrays of one request. Its copies are kept in region_copies of the request, and
  // admitted by the request's permit.
  class Source;

  // Both must outlive it. `copied_bytes_max` bounds what one request has copied from POSIX objects.
  RegionResolver(const RegionTable& regions, BufferPool& pool, int64_t copied_bytes_max)
      : regions_(regions), pool_(pool), copied_bytes_max_(copied_bytes_max) {}

  // Sets the places of the plan's outputs. REQUIRES: the plan's tensors have their elements.
  absl::Status Place(Request& request) const;

 private:
  const RegionTable& regions_;
  BufferPool& pool_;
  const int64_t copied_bytes_max_;
};

class RegionResolver::Source final : public ArraySource {
 public:
  // Both must outlive it. REQUIRES: the request is decoded.
  Source(const RegionResolver& resolver, Request& request)
      : ArraySource(request.decoded.split), resolver_(resolver), request_(request) {}

  absl::StatusOr<proto::FragmentedBytes> Find(RegionPart& part, absl::string_view field) override;

 private:
  absl::StatusOr<const char*> Copy(const RegionPart& part, absl::string_view field);

  const RegionResolver& resolver_;
  Request& request_;
  int64_t copied_ = 0;
};

// Copies outputs that were made in pooled memory to the POSIX objects that they belong in.
absl::Status StoreOutputs(const Request& request);

// Which results may overwrite what was received.
struct OverwrittenBytes {
  int64_t min = 0;  // of a result
  // All results of the request together must be smaller.
  int64_t request_end = std::numeric_limits<int64_t>::max();
};

// Sets the destination of each tensor of a plan. Tensors that go to POSIX objects also get their
// store_strides. Results of the sizes in `overwritten` overwrite received bytes that may be
// overwritten and that they fit one for one. REQUIRES: the tensors have their elements, and their
// places are checked.
void SetDestinations(ReceivedBytes& received, const OverwrittenBytes& overwritten, Plan& plan);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_REGION_RESOLVER_H_
