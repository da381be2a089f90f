// Reads rope.v1.Tensor messages into TensorPlans: first what stays the same in repeated requests,
// then the elements.
//
// Threading:  Functions only.
// Ownership:  Inputs are views into the request's received bytes or a region, which the plan holds,
//             or the plan's own copies.
// Errors:     INVALID_ARGUMENT: "tensors[0].layout: got X, want Y". RESOURCE_EXHAUSTED: more tokens
//             than limits::kTokensMax. As ArraySource::Find.
#ifndef ROPE_SERVER_REQUEST_TENSOR_READER_H_
#define ROPE_SERVER_REQUEST_TENSOR_READER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "rope/v1/rotate.pb.h"
#include "server/request/array_source.h"
#include "server/request/plan.h"

namespace rope::server {

// Sets the plan's tensors without their elements, its number of tokens and its bytes per token.
// `source`: of norm weights.
absl::Status PrepareTensors(const v1::RotateRequest& message, ArraySource& source, Plan& plan);

// Gives the plan's tensors another length along one of their token axes. REQUIRES: PrepareTensors
// with the same message; `length` is at least 0 and at most that of the message.
absl::Status Resize(const v1::RotateRequest& message, char axis, int64_t length, Plan& plan);

// Sets the inputs of the plan's tensors. `values`: the message with their elements.
absl::Status ReadElements(const v1::RotateRequest& values, ArraySource& source, Plan& plan);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_TENSOR_READER_H_
