// PlanRotation: from an embedding and positions to the frequencies of every token.
//
// Threading:  Functions only.
// Errors:     INVALID_ARGUMENT: a head_dim that is not the config's, no pairing, no 1/m to multiply
//             with, two embeddings that no rotation leads between.
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

// An embedding, and where the tokens stand in it.
struct RopeAt {
  const RopeEntry& entry;
  TokenPositions positions;
};

// INVALID_ARGUMENT: an embedding that OPERATION_ADD_SINUSOIDAL has no table for: with an attention
// factor, xpos or precision hf.
absl::Status CheckSinusoidal(const kernels::ResolvedRope& resolved);

// Adds a warning where a position, by axis and token, is past the model's own length.
void WarnPastLength(const kernels::RopeConfig& config,
                    const std::array<std::vector<int64_t>, 3>& positions, Plan& plan);

// Fills the rest of a plan that has its tensors. A layer without rotation leaves it as it is.
absl::Status PlanRotation(v1::Operation operation, RopeAt rope, Plan& plan);

// The same for tensors that are rotated already and move `from` one place `to` another. Their
// product of attention factors becomes that of `to`, so within one embedding nothing is scaled.
absl::Status PlanReposition(RopeAt from, RopeAt to, Plan& plan);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_PLAN_ROTATION_H_
