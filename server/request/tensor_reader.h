// Reads the tensors of a request, with their fused ops and their pages.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_REQUEST_TENSOR_READER_H_
#define ROPE_SERVER_REQUEST_TENSOR_READER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "rope/v1/rotate.pb.h"
#include "server/request/plan.h"

namespace rope::server {

// Reads rope.v1.Tensor messages into TensorPlans: first what stays the same in repeated requests,
// then the elements.
//
// Ownership:  Inputs are views into the request's received bytes or a region, which the plan holds,
//             or the plan's own copies.
// Errors:     INVALID_ARGUMENT: "tensors[0].layout: got X, want Y". RESOURCE_EXHAUSTED: more tokens
//             than limits::kTokensMax. As ArraySource::Find. NeedsSideThread, unless the plan may
//             take long: norm weights of wide heads, copies of more than kPlanHereBytesMax.

// Sets the plan's tensors without their elements, its number of tokens and its bytes per token.
// `source`: of norm weights.
absl::Status PrepareTensors(const v1::RotateRequest& message, ArraySource& source, Plan& plan);

// Gives the plan's tensors another length along one of their token axes. REQUIRES: PrepareTensors
// with the same message; `length` is at least 0 and at most that of the message.
absl::Status Resize(const v1::RotateRequest& message, char axis, int64_t length, Plan& plan);

// Sets the inputs of the plan's tensors. `values`: the message with their elements.
absl::Status ReadElements(const v1::RotateRequest& values, ArraySource& source, Plan& plan);

// The fused ops of a request (RMS norm, scales and fp8 output) run in the same pass over memory as
// the rotation (kernels/backend/rotate_job.h). PrepareTensors reads all but the scales of tokens.
//
// Errors:     INVALID_ARGUMENT: a number that is not finite or does not fit float32; a norm or
//             scale together with head_ranges, or with an operation that does not support it.

// If tensors have llama4_scaling_beta, sets the plan's token_scaling and marks these tensors.
// `original_length`: the config's, if it has one.
absl::Status ReadTokenScaling(const v1::RotateRequest& message,
                              std::optional<int64_t> original_length, Plan& plan);

// Fills the token_scales of a plan with token_scaling. `positions`: by token.
absl::Status PlanTokenScales(absl::Span<const int64_t> positions, Plan& plan);

// Pages: where the tokens of paged tensors lie (rope.v1.PagedTokens). The plan holds copies of page
// ids and slots, and the regions of its pools.
//
// Errors:     INVALID_ARGUMENT: strides by which tokens overlap; ids, slots and targets as
//             PagedTokens says; a pool that is in no region. OUT_OF_RANGE: a slot past the pool.

// The bytes of the page ids and slots that ReadElements will keep, at most.
int64_t PagesBytes(const v1::RotateRequest& values, const Plan& plan);

// Bytes from the beginning of the pool of the results to the end of their last slot.
int64_t TargetBytes(const TensorPlan& tensor);

// INVALID_ARGUMENT: one token of the tensor reads a slot that another one writes. REQUIRES: the
// results are in the pool of the tokens.
absl::Status CheckTargets(const TensorPlan& tensor, const std::string& path);

// Whether two pools of the same strides, `distance` elements from each other, share no element:
// layers that take turns in pages or in tokens.
bool AreInterleaved(const TensorPlan& a, const TensorPlan& b, int64_t distance);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_TENSOR_READER_H_
