// PlanRotation: assigns frequencies to every token, given an embedding and the tokens' positions.
//
// Tokens with the same frequencies form a run (TokenRun). Frequencies depend on the sequence's
// length only for configs whose scaling follows it (dynamic, longrope), so that most plans have one
// run. Heads whose rows differ, by side or dtype, have row sets of their own (RowSet).
//
// Threading:  Functions only.
// Errors:     INVALID_ARGUMENT: as token_runs.h. OUT_OF_RANGE: a position beyond the range of xPos.
#ifndef ROPE_SERVER_REQUEST_PLAN_ROTATION_H_
#define ROPE_SERVER_REQUEST_PLAN_ROTATION_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "rope/v1/rotate.pb.h"
#include "server/request/plan.h"
#include "server/request/token_runs.h"

namespace rope::server {

// OUT_OF_RANGE: a position beyond the range of xPos, if the embedding has it.
absl::Status CheckRange(const kernels::ResolvedRope& resolved, absl::Span<const int64_t> positions);

// INVALID_ARGUMENT: OPERATION_ADD_SINUSOIDAL does not support the embedding, because it has an
// attention factor other than 1, xpos or precision hf.
absl::Status CheckSinusoidal(const kernels::ResolvedRope& resolved);

// The part that does not depend on positions: the embedding's checks, the geometry and the
// attention factor, and, where frequencies depend on no length and no layer, the row sets.
// REQUIRES: the plan's tensors are set; ropes.entry is. `layers`: the entries of an L axis
// (FindLayers).
absl::Status PrepareRotation(v1::Operation operation, const RopeEntries& layers, Ropes& ropes,
                             Plan& plan);

// Fills the rest of a prepared plan. A layer that does not rotate changes nothing.
absl::Status PlanRotation(v1::Operation operation, const Ropes& ropes, TokenPositions positions,
                          Plan& plan);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_PLAN_ROTATION_H_
