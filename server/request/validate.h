// Validate: turns a parsed RotateRequest into a Plan that needs no further checks. Uses no device
// and no queue.
//
//   operation -> embedding -> tensors -> admit -> fused ops, positions -> frequencies or rows
//
// Threading:  Functions only. The registry is thread-safe.
// Ownership:  The plan's inputs are views into the request's received bytes, or copies if the
//             elements came as numbers. Positions are copied before they are checked.
// Errors:     INVALID_ARGUMENT, OUT_OF_RANGE (position), NOT_FOUND (model, config_id),
//             UNIMPLEMENTED (operation): "field: got X, want Y". Errors of `admit`.
#ifndef ROPE_SERVER_REQUEST_VALIDATE_H_
#define ROPE_SERVER_REQUEST_VALIDATE_H_

#include "absl/status/statusor.h"
#include "server/models/model_registry.h"
#include "server/request/request.h"

namespace rope::server {

absl::Status Validate(const v1::RotateRequest& message, const proto::SplitMessage& split,
                      ModelRegistry& registry, AdmitTensors admit, Plan& plan);

// The same without admission.
absl::StatusOr<Plan> Validate(const v1::RotateRequest& message, const proto::SplitMessage& split,
                              ModelRegistry& registry);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_VALIDATE_H_
