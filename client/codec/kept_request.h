// KeptRequest: what an asynchronous call keeps of its request, to encode it again for another
// attempt after the caller's request has gone.
//
// Threading:  Immutable; usable from any thread.
// Ownership:  Owns copies of everything, rows and norm weights included, but for the memory of the
//             tensors, which it borrows.
#ifndef ROPE_CLIENT_CODEC_KEPT_REQUEST_H_
#define ROPE_CLIENT_CODEC_KEPT_REQUEST_H_

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "client/codec/preparation.h"
#include "rope/rotate.h"
#include "rope/status.h"

namespace rope::client {

class KeptRequest {
 public:
  // `preparation`: of this request, so that only its values are copied; or null.
  // INVALID_ARGUMENT: an array without data, or with a shape whose size in bytes is not defined.
  static Result<std::unique_ptr<const KeptRequest>> Of(
      const RotateRequest& request, std::shared_ptr<const Preparation> preparation);

  // The request. Its arrays lie in this object.
  RotateRequest Get() const { return values_ ? preparation_->With(*values_) : request_; }

 private:
  KeptRequest() = default;
  Status Copy(const RotateRequest& request);
  Status CopyArray(const std::string& field, ArrayView& view);

  std::shared_ptr<const Preparation> preparation_;
  std::optional<RotateValues> values_;  // set: the request is these and the preparation
  RotateRequest request_;
  std::deque<std::string> arrays_;  // stay where they are while others are added
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CODEC_KEPT_REQUEST_H_
