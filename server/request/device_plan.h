// PlanDevice: the last stage of planning for tensors on a device, in place of PlanPositions
// (validate.h). It takes no time for each token, and reads no byte of a device.
//
// Threading:  Functions only.
// Errors:     INVALID_ARGUMENT: a tensor or an output in host memory; else as PlanPositions.
//             UNIMPLEMENTED: what only tensors in host memory can have, by the name of its field.
#ifndef ROPE_SERVER_REQUEST_DEVICE_PLAN_H_
#define ROPE_SERVER_REQUEST_DEVICE_PLAN_H_

#include "absl/status/status.h"
#include "rope/v1/rotate.pb.h"
#include "server/request/plan.h"
#include "server/request/token_runs.h"

namespace rope::server {

// REQUIRES: the plan's tensors have their places.
absl::Status PlanDevice(const v1::RotateRequest& fixed, const v1::RotateRequest& values,
                        const Ropes& ropes, ArraySource& source, Plan& plan);

// INVALID_ARGUMENT: a tensor or an output lies on a device.
absl::Status CheckOnHost(const Plan& plan);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_DEVICE_PLAN_H_
