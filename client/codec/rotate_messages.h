// Rotate requests as messages, without the bytes of their tensors (codec.h), and what the answer to
// each has to be.
//
// Threading:  Functions only.
// Ownership:  Messages hold copies, of the arrays beside the tensors too.
// Errors:     INVALID_ARGUMENT: a tensor or array without memory, or of a size that is no number of
//             bytes. All else is for the server to judge.
#ifndef ROPE_CLIENT_CODEC_ROTATE_MESSAGES_H_
#define ROPE_CLIENT_CODEC_ROTATE_MESSAGES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rope/rotate.h"
#include "rope/status.h"
#include "rope/v1/rotate.pb.h"

namespace rope::client {

// Everything but the tensors. `request_id` stands in place of the request's own.
// REQUIRES: `head` is empty.
Status SetHead(const RotateRequest& request, const std::string& request_id,
               v1::RotateRequest& head);

// A tensor as it goes out, without its elements; returns how many bytes these are. REQUIRES: `head`
// is empty.
Result<int64_t> SetTensor(const TensorView& view, size_t index, v1::Tensor& head);

// What the answer to a tensor has to be, and where it goes.
struct WantedTensor {
  Role role = Role::kQ;
  std::string layout = {};
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape = {};
  int64_t bytes = 0;
  void* output = nullptr;  // null: the reply allocates
  bool in_region = false;  // the server writes it there, and the answer holds no bytes
  // Where in staging memory the server writes it; null: where it is wanted, or in the answer.
  const void* staged = nullptr;
};
// REQUIRES: SetTensor took the view.
WantedTensor WantedOf(const TensorView& view, std::optional<DType> output_dtype);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CODEC_ROTATE_MESSAGES_H_
