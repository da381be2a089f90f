// Reply: the text of an answer, everything but the bytes of its tensors. Knows no gRPC.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_REQUEST_REPLY_H_
#define ROPE_SERVER_REQUEST_REPLY_H_

#include <string>

#include "server/request/request.h"

namespace rope::server {

// The part of ReplyHead that the plan alone decides.
std::string ReplyFactor(const Plan& plan);

// A RotateResponse without its tensors.
std::string ReplyHead(const Request& request);

// Whether the answer holds the tensor's bytes: they came as bytes, and there are any.
bool HasReplyPayload(const Request& request, size_t tensor);

// What requests like this one have in common of a tensor in their replies. REQUIRES: it was parsed,
// and its tensor did not come as numbers.
PreparedTensor PrepareReplyTensor(Request& request, size_t tensor);

// Appends a tensor of a request that has run, as far as its payload, if it has one. Typed in, typed
// out: the elements of one that came as numbers are among it.
void AppendReplyTensor(Request& request, size_t tensor, std::string& text);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_REPLY_H_
