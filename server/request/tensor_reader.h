// ReadTensors: validates rope.v1.Tensor messages and makes a TensorPlan of each.
//
// Threading:  Functions only.
// Ownership:  Inputs are views into the request's received bytes, or the plan's own copies.
// Errors:     INVALID_ARGUMENT: "tensors[0].layout: got X, want Y". RESOURCE_EXHAUSTED: more tokens
//             than limits::kTokensMax.
#ifndef ROPE_SERVER_REQUEST_TENSOR_READER_H_
#define ROPE_SERVER_REQUEST_TENSOR_READER_H_

#include "absl/status/status.h"
#include "proto/wire/message_split.h"
#include "rope/v1/rotate.pb.h"
#include "server/request/request.h"

namespace rope::server {

// Sets the plan's tensors, its number of tokens and its bytes per token.
absl::Status ReadTensors(const v1::RotateRequest& message, const proto::SplitMessage& split,
                         Plan& plan);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_TENSOR_READER_H_
