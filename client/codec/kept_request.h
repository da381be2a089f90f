// KeptRequest: what an asynchronous call keeps of its request, to encode it again for another
// attempt after the caller's request has gone.
//
// Threading:  Immutable; usable from any thread.
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

class KeptRequest {
 public:
  // INVALID_ARGUMENT: an array without data, or with a shape whose size in bytes is not defined.
  static Result<std::unique_ptr<const KeptRequest>> Of(const RotateRequest& request,
                                                       const Region& region);

  // The request. Its arrays lie in this object or in the region.
  const RotateRequest& Get() const { return request_; }

 private:
  explicit KeptRequest(const RotateRequest& request) : request_(request) {}
  Status CopyArrays(const Region& region);
  Status CopyArray(const std::string& field, ArrayView& view);

  RotateRequest request_;
  std::deque<std::string> arrays_;  // stay where they are while others are added
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CODEC_KEPT_REQUEST_H_
