// PlanReposition: moves tensors that are already rotated to other positions or another embedding.
//
//   equal frequencies before and after   one rotation by the difference of the positions
//   different frequencies                undo the old rotation (`from`), then apply the new one
//
// Threading:  Functions only.
// Errors:     INVALID_ARGUMENT: as token_runs.h; a reposition between incompatible embeddings.
//             OUT_OF_RANGE: a distance beyond the range of xPos.
#ifndef ROPE_SERVER_REQUEST_PLAN_REPOSITION_H_
#define ROPE_SERVER_REQUEST_PLAN_REPOSITION_H_

#include "absl/status/status.h"
#include "server/request/plan.h"
#include "server/request/token_runs.h"

namespace rope::server {

// Fills the rest of a plan whose tensors are set and move `from` their positions `to` others. The
// result has the attention factor of `to`. Within one embedding nothing is scaled.
absl::Status PlanReposition(RopeAt from, RopeAt to, Plan& plan);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_PLAN_REPOSITION_H_
