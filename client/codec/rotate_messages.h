// Builds the messages of a rotate request, without tensor bytes (codec.h adds those), and describes
// the expected answer.
//
// Threading:  Functions only.
// Ownership:  Messages hold copies, including those of positions, rows and norm weights.
// Errors:     INVALID_ARGUMENT: a tensor or array without data, or with a shape or strides whose
//             size in bytes is not defined. The server checks everything else.
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

// Fills everything but the tensors. INVALID_ARGUMENT: alternatives of which more than one is given.
// REQUIRES: `head` is empty.
Status SetHead(const RotateRequest& request, v1::RotateRequest& head);

// Fills one tensor without its elements; returns the size of the elements in bytes.
// REQUIRES: `head` is empty.
Result<int64_t> SetTensor(const TensorView& view, size_t index, v1::Tensor& head);

// The expected answer to one tensor, and its destination.
struct WantedTensor {
  Role role = Role::kQ;
  std::string layout = {};
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape = {};
  int64_t bytes = 0;
  void* output = nullptr;  // null: the reply allocates memory
  bool in_region = false;  // the server writes it to the region; the answer holds no bytes
  // Where the server writes it in staging memory. Null: directly to `output`, or in the answer.
  const void* staged = nullptr;
};
// REQUIRES: SetTensor accepted `view`.
WantedTensor WantedOf(const TensorView& view, std::optional<DType> output_dtype);

}  // namespace rope::client

#endif  // ROPE_CLIENT_CODEC_ROTATE_MESSAGES_H_
