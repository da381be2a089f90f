// Bounds of a request's slices beyond their bytes: the table rows that a slice builds, and the jobs
// that it becomes.
//
// Threading:  Functions only.
// Errors:     RESOURCE_EXHAUSTED: a token that is too large for a slice. A slice has at least one
//             token.
#ifndef ROPE_SERVER_ENGINE_SLICE_BOUNDS_H_
#define ROPE_SERVER_ENGINE_SLICE_BOUNDS_H_

#include "absl/status/status.h"
#include "server/request/plan.h"

namespace rope::server {

// Fills `building`, from the positions of a plan. A token on a page that the slice has not used may
// need that page to be built: for mrope one on each axis, and for each row set. Rows that are made
// for this request alone are built for each slice.
void BoundBuilding(Plan& plan);

// Fills `jobs`, and checks what one token takes. REQUIRES: the plan's tensors have their strides.
absl::Status BoundJobs(Plan& plan);

}  // namespace rope::server

#endif  // ROPE_SERVER_ENGINE_SLICE_BOUNDS_H_
