// PlanRotation: assigns frequencies to every token, given an embedding and the tokens' positions.
//
// Tokens with the same frequencies form a run (TokenRun). Frequencies depend on the sequence's
// length only for configs whose scaling follows it (dynamic, longrope), so that most plans have one
// run. Heads whose rows differ, by side or dtype, have row sets of their own (RowSet).
//
// A reposition takes one of two ways:
//
//   equal frequencies before and after   one rotation by the difference of the positions
//   different frequencies                undo the old rotation (`from`), then apply the new one
//
// Threading:  Functions only.
// Errors:     INVALID_ARGUMENT: a head_dim other than the config's, no pairing, an attention factor
//             without a float32 inverse, a reposition between incompatible embeddings.
//             OUT_OF_RANGE: a position or distance beyond the range of xPos.
#ifndef ROPE_SERVER_REQUEST_PLAN_ROTATION_H_
#define ROPE_SERVER_REQUEST_PLAN_ROTATION_H_

#include <array>
#include <vector>

#include "absl/status/status.h"
#include "rope/v1/rotate.pb.h"
#include "server/models/model_registry.h"
#include "server/request/plan.h"
#include "server/request/positions.h"

namespace rope::server {

// An embedding, and the tokens' positions in it.
struct RopeAt {
  const RopeEntry& entry;
  TokenPositions positions;
};

// INVALID_ARGUMENT: OPERATION_ADD_SINUSOIDAL does not support the embedding, because it has an
// attention factor other than 1, xpos or precision hf.
absl::Status CheckSinusoidal(const kernels::ResolvedRope& resolved);

// Adds a warning if a position is past the model's own length. `positions` are by axis and token.
void WarnPastLength(const kernels::RopeConfig& config,
                    const std::array<std::vector<int64_t>, 3>& positions, Plan& plan);

// Fills the rest of a plan whose tensors are set. A layer that does not rotate changes nothing.
absl::Status PlanRotation(v1::Operation operation, RopeAt rope, Plan& plan);

// The same for tensors that are already rotated, and that move `from` their positions `to` others.
// The result has the attention factor of `to`. Within one embedding nothing is scaled.
absl::Status PlanReposition(RopeAt from, RopeAt to, Plan& plan);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_PLAN_ROTATION_H_
