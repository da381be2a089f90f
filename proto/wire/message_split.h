// Splits a received message into a small skeleton, for the generated parser, and its payloads
// (rope.v1.Array.raw), which stay in the received buffers. Reads the wire once and checks it
// strictly.
//
// In the skeleton, each `raw` contains the index of its payload instead of the bytes; PayloadOf
// looks the payload up.
//
// Threading:  Functions only.
// Ownership:  Payloads are views into the given fragments.
// Errors:     INVALID_ARGUMENT: malformed bytes; a singular field given twice; two members of one
//             oneof; a wrong wire type.
//             UNIMPLEMENTED, with kRefuse: an unknown field number, or a planned field.
//             RESOURCE_EXHAUSTED: a limit of SplitOptions is exceeded. The text begins with the
//             path of the field or "request"; for truncated bytes with "message" (WireCursor).
// Limits:     Messages nest at most 16 deep.
#ifndef ROPE_PROTO_WIRE_MESSAGE_SPLIT_H_
#define ROPE_PROTO_WIRE_MESSAGE_SPLIT_H_

#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/wire/schema.h"
#include "proto/wire/wire_cursor.h"
#include "rope/v1/array.pb.h"

namespace rope::proto {

// How to treat field numbers that are not in the schema.
enum class UnknownFields {
  kRefuse,  // for requests: no field is silently ignored
  kSkip,    // for replies: a newer server may send more fields
};

struct SplitOptions {
  UnknownFields unknown_fields = UnknownFields::kRefuse;
  int64_t skeleton_bytes_max = int64_t{64} << 20;
  // Most elements of one repeated message field. Two bytes on the wire become an object of about a
  // hundred.
  int64_t repeated_messages_max = std::numeric_limits<int64_t>::max();
  // Most fields of the message and all messages in it. Numbers of a packed array are one field.
  int64_t fields_max = std::numeric_limits<int64_t>::max();
};

struct SplitMessage {
  std::string skeleton;
  std::vector<FragmentedBytes> payloads;
};

absl::StatusOr<SplitMessage> Split(const Schema& schema,
                                   absl::Span<const std::string_view> fragments,
                                   const SplitOptions& options = {});

// Whether a split message's array has `raw`, even if `raw` is empty.
inline bool HasPayload(const v1::Array& array) {
  return !array.raw().empty();
}

// The bytes of `array.raw`. REQUIRES: HasPayload(array), and `array` belongs to `message`.
const FragmentedBytes& PayloadOf(const v1::Array& array, const SplitMessage& message);
// Gives an array of a message that was not sent the payload `bytes`, which must outlive `message`.
void SetPayload(std::string_view bytes, v1::Array& array, SplitMessage& message);

}  // namespace rope::proto

#endif  // ROPE_PROTO_WIRE_MESSAGE_SPLIT_H_
