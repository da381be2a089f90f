// Validate: turns a parsed RotateRequest into a Plan that needs no further checks. Uses no device
// and no queue. It has three stages. Prepared requests (prepared_rotation.h) pass the first one
// only once:
//
//   PrepareFixed   what stays the same: operation, embeddings, tensors without their elements
//   PlanElements   what each call brings: first the elements of its tensors
//   PlanPositions  then its positions, and from them frequencies or rows
//
// Between the last two the caller admits what the request takes, now that its sizes are known.
//
// Threading:  Functions only. The registry is thread-safe.
// Ownership:  The plan's inputs are views into the request's received bytes or into regions, which
//             the plan holds, or copies if the elements came as numbers. Positions are copied
//             before they are checked.
// Errors:     INVALID_ARGUMENT, OUT_OF_RANGE (position), NOT_FOUND (model, config_id),
//             UNIMPLEMENTED (ROLE_V, several fp8_scales), RESOURCE_EXHAUSTED (a limit), errors of
//             `source`. NeedsSideThread, unless the plan may take long.
#ifndef ROPE_SERVER_REQUEST_VALIDATE_H_
#define ROPE_SERVER_REQUEST_VALIDATE_H_

#include "absl/status/status.h"
#include "rope/v1/rotate.pb.h"
#include "server/models/model_registry.h"
#include "server/request/plan.h"
#include "server/request/rotation_plan.h"

namespace rope::server {

absl::Status PrepareFixed(const v1::RotateRequest& fixed, ArraySource& source,
                          ModelRegistry& registry, Ropes& ropes, Plan& plan);

// Fill the rest of a plan that PrepareFixed has begun. REQUIRES: `values` has as many tensors as
// `fixed`.
absl::Status PlanElements(const v1::RotateRequest& fixed, const v1::RotateRequest& values,
                          ArraySource& source, Plan& plan);
absl::Status PlanPositions(const v1::RotateRequest& fixed, const v1::RotateRequest& values,
                           const Ropes& ropes, ArraySource& source, Plan& plan);

// In place of PlanPositions, for tensors on a device: it takes no time for each token, and reads no
// byte of a device. UNIMPLEMENTED: what only tensors in host memory can have, by the name of its
// field. INVALID_ARGUMENT: a tensor or an output in host memory. REQUIRES: the plan's tensors have
// their places.
absl::Status PlanDevice(const v1::RotateRequest& fixed, const v1::RotateRequest& values,
                        const Ropes& ropes, ArraySource& source, Plan& plan);
// Whether planning a move by these rows may copy them. It never copies rows of a region, unless
// they are FP64 or differ in dtype.
bool CopiesMovedRows(const v1::Rows& rows);

// INVALID_ARGUMENT: a tensor or an output lies on a device.
absl::Status CheckOnHost(const Plan& plan);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_VALIDATE_H_
