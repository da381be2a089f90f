// PreparedRotation: a request without the values that each call brings, validated once.
//
// Threading:  Functions; a PreparedRotation is immutable.
// Errors:     Prepare: as Validate, with the path of the field in the PrepareRequest. BeginCall:
//             INVALID_ARGUMENT: the call sets a field that is no value.
#ifndef ROPE_SERVER_REQUEST_PREPARED_ROTATION_H_
#define ROPE_SERVER_REQUEST_PREPARED_ROTATION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/wire/message_split.h"
#include "rope/v1/prepare.pb.h"
#include "server/models/model_registry.h"
#include "server/request/array_source.h"
#include "server/request/plan.h"
#include "server/request/token_runs.h"

namespace rope::server {

struct PreparedRotation {
  std::string id;
  v1::RotateRequest message;  // what stays the same
  char open_axis = 0;         // its length differs between calls; 0: no axis
  Plan plan;                  // without inputs, places and positions
  Ropes ropes;
  // Set: the request names a model, and this was ModelRegistry::version before it was looked up.
  std::optional<int64_t> registry_version;
  int64_t bytes = 0;  // of memory, approximately
};

// `payloads`: of the request's arrays.
absl::StatusOr<std::shared_ptr<const PreparedRotation>> Prepare(const v1::PrepareRequest& request,
                                                                const proto::SplitMessage& payloads,
                                                                ModelRegistry& registry);

// Begins the plan of a call: the prepared plan, with the call's length of the open axis.
// PlanElements and PlanPositions (validate.h) fill the rest.
absl::Status BeginCall(const PreparedRotation& prepared, const v1::RotateRequest& call, Plan& plan);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_PREPARED_ROTATION_H_
