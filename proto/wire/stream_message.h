// The messages of a RotateStream: rope.v1.RotateStreamRequest and RotateStreamResponse. Both wrap
// an encoded message, which is neither copied nor parsed here.
//
// Threading:  Functions only.
// Ownership:  A read message refers to the given fragments.
// Errors:     INVALID_ARGUMENT: malformed bytes, a field given twice, a wrong wire type.
//             UNIMPLEMENTED: an unknown field number. The text begins with the field.
#ifndef ROPE_PROTO_WIRE_STREAM_MESSAGE_H_
#define ROPE_PROTO_WIRE_STREAM_MESSAGE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/wire/wire_cursor.h"

namespace rope::proto {

struct StreamMessage {
  uint64_t sequence = 0;  // 0: unset
  bool cancel = false;    // of a request
  // The encoded RotateRequest; nullopt: unset.
  std::optional<FragmentedBytes> rotate = {};
};

// Reads a RotateStreamRequest. On an error, `message.sequence` is set if it was read before.
absl::Status ReadStreamMessage(absl::Span<const std::string_view> fragments,
                               StreamMessage& message);

// The bytes that precede an encoded request or response of `rotate_bytes` bytes on a stream.
std::string StreamPrefix(uint64_t sequence, int64_t rotate_bytes);

}  // namespace rope::proto

#endif  // ROPE_PROTO_WIRE_STREAM_MESSAGE_H_
