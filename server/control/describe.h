// Describe: evaluates a config: its frequencies, rows, scaling and readings.
//
// Threading:  Functions only; the registry is thread-safe.
// Errors:     As ModelRegistry::Find and kernels::Resolve; OUT_OF_RANGE or INVALID_ARGUMENT for
//             positions and seq_len.
// Precision:  cos and sin are the exact values of the formulas, rounded once to double.
#ifndef ROPE_SERVER_CONTROL_DESCRIBE_H_
#define ROPE_SERVER_CONTROL_DESCRIBE_H_

#include "absl/status/statusor.h"
#include "rope/v1/describe.pb.h"
#include "server/models/model_registry.h"

namespace rope::server {

absl::StatusOr<v1::DescribeResponse> Describe(const v1::DescribeRequest& request,
                                              ModelRegistry& registry);

}  // namespace rope::server

#endif  // ROPE_SERVER_CONTROL_DESCRIBE_H_
