// Plans which embedding, pairs and rows each tensor of a rotation or reposition takes.
#ifndef ROPE_SERVER_REQUEST_ROTATION_PLAN_H_
#define ROPE_SERVER_REQUEST_ROTATION_PLAN_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "rope/v1/config.pb.h"
#include "rope/v1/rotate.pb.h"
#include "server/models/model_registry.h"
#include "server/request/plan.h"
#include "server/request/token_runs.h"

namespace rope::server {

// PlanRotation: assigns frequencies to every token, given an embedding and the tokens' positions.
//
// Tokens with the same frequencies form a run (TokenRun). Frequencies depend on the sequence's
// length only for configs whose scaling follows it (dynamic, longrope), so that most plans have one
// run. Heads whose rows differ, by side or dtype, have row sets of their own (RowSet).
//
// Errors:     INVALID_ARGUMENT: as token_runs.h. OUT_OF_RANGE: a position beyond the range of xPos.

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

// Fills the row sets of a plan for tensors on a device, each as one run: of a rotation at `length`,
// and of a move of all tokens by one difference within one embedding. UNIMPLEMENTED: embeddings
// that no resident table serves.
absl::Status PlanDeviceRotation(v1::Operation operation, const Ropes& ropes,
                                std::optional<int64_t> length, Plan& plan);
absl::Status PlanDeviceMove(const Ropes& ropes, int64_t difference, Plan& plan);

// PlanReposition: moves tensors that are already rotated to other positions or another embedding.
//
//   equal frequencies before and after   one rotation by the difference of the positions
//   different frequencies                undo the old rotation (`from`), then apply the new one
//
// Errors:     INVALID_ARGUMENT: as token_runs.h; a reposition between incompatible embeddings;
//             layers of which one has different frequencies before and after.
//             OUT_OF_RANGE: a distance beyond the range of xPos.

// The former embedding of a request. Errors name it reposition.from_rope. Errors: as
// ModelRegistry::Find.
absl::StatusOr<std::shared_ptr<const RopeEntry>> FindFromRope(const v1::RopeSpec& from_rope,
                                                              ModelRegistry& registry,
                                                              bool may_take_long = true);

// INVALID_ARGUMENT: another pairing, rotary_offset or rotary_dim.
absl::Status CheckSameGeometry(const RopeEntry& from, const kernels::ResolvedRope& resolved_from,
                               const RopeEntry& to, const kernels::ResolvedRope& resolved_to);

// OUT_OF_RANGE: a difference of positions beyond the range of xPos, if the embedding has it.
absl::Status CheckDistances(const kernels::ResolvedRope& resolved,
                            absl::Span<const int64_t> differences);

// The part that does not depend on positions: the embeddings' checks and the geometry. REQUIRES:
// the plan's tensors are set; ropes.entry and ropes.from_entry are. `layers`: the entries of an L
// axis (FindLayers).
absl::Status PrepareReposition(const RopeEntries& layers, Ropes& ropes, Plan& plan);

// Fills the rest of a prepared plan that moves tensors `from` their positions `to` others. The
// result has the attention factor of ropes.entry. Within one embedding nothing is scaled.
absl::Status PlanReposition(const Ropes& ropes, TokenPositions from, TokenPositions to, Plan& plan);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_ROTATION_PLAN_H_
