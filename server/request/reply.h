// Reply: writes a RotateResponse, except for the raw bytes of its tensors. Knows no gRPC.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_REQUEST_REPLY_H_
#define ROPE_SERVER_REQUEST_REPLY_H_

#include <string>

#include "server/request/request.h"

namespace rope::server {

// A RotateResponse without its tensors.
std::string ReplyHead(const Request& request);

// Whether the reply contains the tensor's raw bytes: the input came as bytes, the result is not in
// a region, and it is not empty.
bool HasReplyPayload(const Request& request, size_t tensor);

// Appends a tensor of a request that has run, up to its payload if it has one. A tensor that came
// as numbers is returned as numbers, which are part of this text.
void AppendReplyTensor(const Request& request, size_t tensor, std::string& text);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_REPLY_H_
