// KeptRequest: what an asynchronous call keeps of its request, to encode it again for another
// attempt after the caller's request has gone.
//
// Threading:  A value.
// Ownership:  Owns copies of everything, norm weights included, but for the memory of the tensors
//             and of rows in the region, which it borrows.
#ifndef ROPE_CLIENT_CODEC_KEPT_REQUEST_H_
#define ROPE_CLIENT_CODEC_KEPT_REQUEST_H_

#include <deque>
#include <memory>
#include <string>

#include "client/memory/region.h"
#include "rope/rotate.h"
#include "rope/status.h"

namespace rope::client {

struct KeptRequest {
  RotateRequest request;
  std::deque<std::string> arrays;  // of the request; they stay where they are
};

// INVALID_ARGUMENT: an array without data, or with a shape whose size in bytes is not defined.
Result<std::unique_ptr<const KeptRequest>> Keep(const RotateRequest& request, const Region& region);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CODEC_KEPT_REQUEST_H_
