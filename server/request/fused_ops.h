// Reads the fused ops of a request: RMS norm, scales and fp8 output, which run in the same pass
// over memory as the rotation (kernels/backend/rotate_job.h).
//
// Threading:  Functions only.
// Errors:     INVALID_ARGUMENT: a number that is not finite or does not fit float32; a norm or
//             scale together with head_ranges, or with an operation that does not support it.
#ifndef ROPE_SERVER_REQUEST_FUSED_OPS_H_
#define ROPE_SERVER_REQUEST_FUSED_OPS_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "rope/v1/rotate.pb.h"
#include "server/request/plan.h"

namespace rope::server {

// Fills norm, scale and output_scale of a tensor whose dtypes and layout are set.
absl::Status ReadFusedOps(const v1::Tensor& tensor, v1::Operation operation, ArraySource& source,
                          const std::string& path, TensorPlan& plan);

// If tensors have llama4_scaling_beta, sets the plan's token_scaling and marks these tensors.
// `original_length`: the config's, if it has one.
absl::Status ReadTokenScaling(const v1::RotateRequest& message,
                              std::optional<int64_t> original_length, Plan& plan);

// Fills the token_scales of a plan with token_scaling. `positions`: by token.
absl::Status PlanTokenScales(absl::Span<const int64_t> positions, Plan& plan);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_FUSED_OPS_H_
