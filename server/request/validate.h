// Validate: from a parsed RotateRequest to a Plan in which nothing is left to doubt. Pure: no
// device, no queue.
//
// Threading:  Functions only; the registry is thread-safe.
// Ownership:  The plan's inputs are views into the request's received bytes, or its own copies of
//             people's numbers; positions are copied before they are checked.
// Errors:     INVALID_ARGUMENT, OUT_OF_RANGE (position), NOT_FOUND (model, config_id),
//             UNIMPLEMENTED (operation): "field: got X, want Y". What `admit` says.
#ifndef ROPE_SERVER_REQUEST_VALIDATE_H_
#define ROPE_SERVER_REQUEST_VALIDATE_H_

#include "absl/status/statusor.h"
#include "server/models/model_registry.h"
#include "server/request/request.h"

namespace rope::server {

absl::Status Validate(const v1::RotateRequest& message, const proto::SplitMessage& split,
                      ModelRegistry& registry, AdmitTensors admit, Plan& plan);

// The same where memory is no matter.
absl::StatusOr<Plan> Validate(const v1::RotateRequest& message, const proto::SplitMessage& split,
                              ModelRegistry& registry);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_VALIDATE_H_
