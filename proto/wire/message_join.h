// Joins a message and the bytes of its tensors into wire format. Headers are encoded into new
// strings; payloads are only referred to. The result equals the generated serializer's output.
//
// Threading:  Functions only.
// Ownership:  Parts refer to the given payloads, which must outlive them.
#ifndef ROPE_PROTO_WIRE_MESSAGE_JOIN_H_
#define ROPE_PROTO_WIRE_MESSAGE_JOIN_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "rope/v1/rotate.pb.h"

namespace rope::proto {

// A tensor, and the bytes of its array.raw. `tensor` itself has no raw.
struct TensorPart {
  const v1::Tensor* tensor = nullptr;
  std::string_view raw = {};  // empty: the array has no raw field
};

// A piece of the encoded message: `header` followed by `payload`.
struct MessagePart {
  std::string header;
  std::string_view payload;
};

// `head` is the message without its tensors.
std::vector<MessagePart> Join(const v1::RotateRequest& head, absl::Span<const TensorPart> tensors);

// Appends the tag and the length of a field that holds bytes, a string or an encoded message.
void AppendFieldHeader(int number, size_t length, std::string& message);

// Appends a field that holds bytes, a string or an encoded message.
void AppendField(int number, std::string_view value, std::string& message);

// Appends a varint without a tag.
void AppendVarint(uint64_t value, std::string& message);

// Appends a uint64 field. Omits the value 0, which is the default of an absent field.
void AppendVarint(int number, uint64_t value, std::string& message);

// Appends a double field. Omits the value 0, which is the default of an absent field.
void AppendDouble(int number, double value, std::string& message);

// Appends a repeated int64 field. Omits an empty one.
void AppendPacked(int number, absl::Span<const int64_t> values, std::string& message);

// Appends a repeated double field. Omits an empty one.
void AppendDoubles(int number, absl::Span<const double> values, std::string& message);

// Appends a RegionSpan.
void AppendSpan(int number, uint64_t region_id, uint64_t offset, std::string& message);

// A tensor in three parts, which follow each other on the wire.
struct TensorText {
  std::string_view tensor;  // its fields before the array
  std::string_view array;   // the array's fields before the payload
  size_t raw_bytes = 0;     // of the payload, which the caller sends next; 0: the array has no raw
};

// Appends the tensor up to its payload. `number`: the field of `tensors`.
void AppendTensor(int number, const TensorText& tensor, std::string& message);

}  // namespace rope::proto

#endif  // ROPE_PROTO_WIRE_MESSAGE_JOIN_H_
