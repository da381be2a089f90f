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

#include <google/protobuf/descriptor.h>

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/wire/wire_cursor.h"
#include "rope/v1/array.pb.h"

namespace rope::proto {

class Schema;

struct FieldSchema {
  uint32_t number = 0;
  absl::string_view name;
  WireType wire_type = WireType::kVarint;  // of one element
  bool repeated = false;
  bool packable = false;            // repeated numbers, also legal as one length-delimited field
  bool planned = false;             // has the option (rope.v1.planned)
  bool payload = false;             // is rope.v1.Array.raw
  int oneof = -1;                   // index of its oneof in the message; -1: in none
  const Schema* message = nullptr;  // of a message field; else null
};

// The properties of a message type that Split checks.
//
// Threading:  Immutable; usable from any thread.
class Schema {
 public:
  // The schema of `descriptor`. Built on first use, together with those of all message types below
  // it, and kept for the life of the process.
  static const Schema& Of(const google::protobuf::Descriptor* descriptor);

  // The field with this number; null if there is none.
  const FieldSchema* Find(uint32_t number) const {
    return number < by_number_.size() ? by_number_[number] : nullptr;
  }
  const std::string& full_name() const { return full_name_; }
  const std::vector<FieldSchema>& fields() const { return fields_; }

 private:
  friend class SchemaRegistry;

  std::string full_name_;
  std::vector<FieldSchema> fields_;
  std::vector<const FieldSchema*> by_number_;
};

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
