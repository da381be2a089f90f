// RegionResolver: resolves the memory regions that a request names.
//
// Threading:  Confined to its owner.
// Ownership:  The request holds the regions that it uses.
// Errors:     INVALID_ARGUMENT: an output that overlaps an input other than its own, another
//             output, or itself. OUT_OF_RANGE: a span past its region. NOT_FOUND: no such region of
//             the connection. FAILED_PRECONDITION: shared memory is off.
#ifndef ROPE_SERVER_REQUEST_REGION_RESOLVER_H_
#define ROPE_SERVER_REQUEST_REGION_RESOLVER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "server/request/plan.h"
#include "server/request/request.h"

namespace rope::server {

class RegionResolver final : public ArraySource {
 public:
  // `request` must outlive it. REQUIRES: the request is decoded.
  explicit RegionResolver(Request& request)
      : ArraySource(request.decoded.split), request_(request) {}

  absl::StatusOr<proto::FragmentedBytes> Find(RegionPart& part, absl::string_view field) override;
  // Sets the places of the plan's outputs. REQUIRES: the plan's tensors have their elements.
  absl::Status Place();

 private:
  Request& request_;
};

// Chooses where the results of a reply go: those of at least `overwritten_min` bytes overwrite
// received bytes that may be overwritten and that they fit one for one. REQUIRES: the
// tensors have their elements, and their places are checked.
void SetDestinations(ReceivedBytes& received, int64_t overwritten_min, Plan& plan);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_REGION_RESOLVER_H_
