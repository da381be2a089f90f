// Splits a received message into a small skeleton, which the generated parser takes, and the
// payloads (rope.v1.Array.raw), which stay where they were received. Reads the wire once and is
// strict on the way.
//
// In the skeleton each `raw` holds, instead of its bytes, the index of its payload (PayloadOf reads
// it).
//
// Threading:  Functions only.
// Ownership:  Payloads are views into the fragments that were given.
// Errors:     INVALID_ARGUMENT: malformed bytes; a singular field given twice; a wrong wire type.
//             UNIMPLEMENTED: an unknown field number or a planned field. RESOURCE_EXHAUSTED:
//             everything but payloads is larger than `skeleton_bytes_max`, or a message field has
//             more than `repeated_messages_max` elements. All name the path of the field.
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

// What to do with field numbers that the schema does not know.
enum class UnknownFields {
  kRefuse,  // requests: nothing is silently ignored
  kSkip,    // answers: a newer server may say more
};

struct SplitOptions {
  UnknownFields unknown_fields = UnknownFields::kRefuse;
  int64_t skeleton_bytes_max = int64_t{64} << 20;
  // Elements of one repeated message field. An element of two bytes becomes an object of a hundred.
  int64_t repeated_messages_max = std::numeric_limits<int64_t>::max();
};

struct SplitMessage {
  std::string skeleton;
  std::vector<FragmentedBytes> payloads;
};

absl::StatusOr<SplitMessage> Split(const Schema& schema,
                                   absl::Span<const std::string_view> fragments,
                                   const SplitOptions& options = {});

// Whether the array of a split message came with `raw` (of any length, 0 too).
inline bool HasPayload(const v1::Array& array) {
  return !array.raw().empty();
}

// Makes `payload` the bytes of `array.raw`, as if they had come with the message.
void AttachPayload(FragmentedBytes payload, v1::Array& array, SplitMessage& message);

// The bytes of its `raw`. REQUIRES: HasPayload(array), and `array` is of the message that was
// split.
const FragmentedBytes& PayloadOf(const v1::Array& array, const SplitMessage& message);

}  // namespace rope::proto

#endif  // ROPE_PROTO_WIRE_MESSAGE_SPLIT_H_
