// Reply: serializes a RotateResponse, except for the raw bytes of its tensors. Knows no gRPC.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_REQUEST_REPLY_H_
#define ROPE_SERVER_REQUEST_REPLY_H_

#include <string>

#include "server/request/request.h"

namespace rope::server {

// The part of ReplyHead that depends only on the plan.
std::string ReplyFactor(const Plan& plan);

// A RotateResponse without its tensors.
std::string ReplyHead(const Request& request);

// Whether the reply contains the tensor's raw bytes: the input came as raw bytes, the result is not
// in a region, and it is not empty.
bool HasReplyPayload(const Request& request, size_t tensor);

// The part of a reply's tensor that is the same for all requests recognised as this one. REQUIRES:
// the request was parsed, and the tensor did not come as numbers.
PreparedTensor PrepareReplyTensor(Request& request, size_t tensor);

// Appends a tensor of a request that has run, up to its payload if it has one. A tensor that came
// as numbers is returned as numbers, which are part of this text.
void AppendReplyTensor(Request& request, size_t tensor, std::string& text);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_REPLY_H_
