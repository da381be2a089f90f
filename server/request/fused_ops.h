// What a request asks to do to its tensors beside the rotation, in the same pass over memory: RMS
// norm, scales, fp8 (kernels/backend/rotate_job.h).
//
// Threading:  Functions only.
// Errors:     INVALID_ARGUMENT: a number that is not finite or that float32 does not hold, a norm
//             or a scale beside head_ranges or an operation that gives it no meaning.
#ifndef ROPE_SERVER_REQUEST_FUSED_OPS_H_
#define ROPE_SERVER_REQUEST_FUSED_OPS_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/wire/message_split.h"
#include "rope/v1/rotate.pb.h"
#include "server/request/request.h"

namespace rope::server {

// Fills norm, scale and output_scale of a tensor that has its dtypes and layout.
absl::Status ReadFusedOps(const v1::Tensor& tensor, v1::Operation operation,
                          const proto::SplitMessage& split, const std::string& path,
                          TensorPlan& plan);

// Fills the plan's token_scales where a tensor has llama_4_scaling_beta, and says which tensors
// take them. `positions`: of each token. `original_length`: that of the config, where it has one.
absl::Status PlanTokenScales(const v1::RotateRequest& message,
                             std::optional<int64_t> original_length,
                             absl::Span<const int64_t> positions, Plan& plan);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_FUSED_OPS_H_
