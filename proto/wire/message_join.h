// Joins a message and its tensors' bytes into wire format without copying the bytes: headers are
// encoded here, payloads are referred to. What comes out is what the generated serializer would
// write.
//
// Threading:  Functions only.
// Ownership:  Parts refer to the payloads that were given; these must outlive them.
#ifndef ROPE_PROTO_WIRE_MESSAGE_JOIN_H_
#define ROPE_PROTO_WIRE_MESSAGE_JOIN_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "rope/v1/rotate.pb.h"

namespace rope::proto {

// A tensor and the bytes of its array.raw, which `tensor` itself leaves empty.
struct TensorPart {
  const v1::Tensor* tensor = nullptr;
  std::string_view raw = {};  // empty: the array has no raw field
};

// A run of the encoded message: `header`, then `payload`.
struct MessagePart {
  std::string header;
  std::string_view payload;
};

// `head` is the message without tensors.
std::vector<MessagePart> Join(const v1::RotateRequest& head, absl::Span<const TensorPart> tensors);

// Appends a field of bytes, a string or an encoded message to an encoded message.
void AppendField(int number, std::string_view value, std::string& message);

// Appends a field of type uint64, unless it is 0: where a field is not there, it is 0.
void AppendVarint(int number, uint64_t value, std::string& message);

// Appends a field of type double, unless it is 0: where a field is not there, it is 0.
void AppendDouble(int number, double value, std::string& message);

// Appends everything of one of a response's tensors that stands before its payload. `raw_bytes`: of
// the payload, which follows; 0: the array has no raw field.
void AppendTensor(const v1::Tensor& tensor, size_t raw_bytes, std::string& response);

}  // namespace rope::proto

#endif  // ROPE_PROTO_WIRE_MESSAGE_JOIN_H_
