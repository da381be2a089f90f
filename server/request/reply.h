// Reply: writes a RotateResponse, except for the raw bytes of its tensors. Knows no gRPC.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_REQUEST_REPLY_H_
#define ROPE_SERVER_REQUEST_REPLY_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "server/request/request.h"

namespace rope::server {

// Writes the reply of a request that has run. Calls `payload(tensor, text)` for each tensor with a
// payload; `text` is then what comes before the payload, and the rest is appended to it. A payload
// is the raw bytes of a result that is not in a region, not empty, and whose input came as bytes; a
// tensor that came as numbers is returned as numbers, which are part of the text. Returns the text.
std::string WriteReply(const Request& request,
                       absl::FunctionRef<void(size_t tensor, std::string& text)> payload);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_REPLY_H_
