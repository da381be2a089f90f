// SetDestinations: decides where the results of a request go.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_REQUEST_DESTINATION_H_
#define ROPE_SERVER_REQUEST_DESTINATION_H_

#include <cstdint>

#include "server/request/plan.h"
#include "server/request/received_bytes.h"

namespace rope::server {

// Sets the destination of each tensor of a plan. Tensors that go to POSIX objects also get their
// store_strides. Results of at least `overwrite_bytes_min` bytes overwrite received bytes that may
// be overwritten and that they fit one for one. REQUIRES: the tensors have their elements, and
// their places are checked.
void SetDestinations(ReceivedBytes& received, int64_t overwrite_bytes_min, Plan& plan);

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_DESTINATION_H_
