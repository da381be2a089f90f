#include "proto/wire/stream_message.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "proto/error.h"
#include "proto/wire/message_join.h"
#include "proto/wire/message_split.h"
#include "rope/v1/rotate.pb.h"

namespace rope::proto {
namespace {

// Requests and responses have the same numbers, so that one prefix serves both.
constexpr uint32_t kSequence = v1::RotateStreamRequest::kSequenceFieldNumber;
constexpr uint32_t kCancel = v1::RotateStreamRequest::kCancelFieldNumber;
constexpr uint32_t kRotate = v1::RotateStreamRequest::kRotateFieldNumber;
static_assert(kSequence == v1::RotateStreamResponse::kSequenceFieldNumber);
static_assert(kRotate == v1::RotateStreamResponse::kRotateFieldNumber);

absl::Status ReadSequence(WireCursor& cursor, bool& has_sequence, StreamMessage& message) {
  ROPE_ASSIGN_OR_RETURN(const uint64_t value, cursor.ReadVarint());
  if (has_sequence) return InvalidField("sequence", "it more than once", "it once");
  has_sequence = true;
  message.sequence = value;
  return absl::OkStatus();
}

// `cancel`, which has no fields, or `rotate`.
absl::Status ReadAction(const FieldSchema& field, WireCursor& cursor, StreamMessage& message) {
  ROPE_ASSIGN_OR_RETURN(const int64_t length, cursor.ReadLength());
  ROPE_ASSIGN_OR_RETURN(FragmentedBytes value, cursor.ReadView(length));
  const bool is_cancel = field.number == kCancel;
  if (is_cancel ? message.cancel : message.rotate.has_value()) {
    return InvalidField(field.name, "it more than once", "it once");
  }
  if (is_cancel && value.bytes > 0) return InvalidField("cancel", "fields", "an empty message");
  if (message.cancel || message.rotate.has_value()) {
    return InvalidField("request", "cancel and rotate", "exactly one of cancel, rotate");
  }
  message.cancel = is_cancel;
  if (!is_cancel) message.rotate = std::move(value);
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadStreamMessage(absl::Span<const std::string_view> fragments,
                               StreamMessage& message) {
  static const Schema& schema = Schema::Of(v1::RotateStreamRequest::descriptor());
  WireCursor cursor(fragments);
  bool has_sequence = false;
  while (cursor.position() < cursor.size()) {
    ROPE_ASSIGN_OR_RETURN(const uint32_t tag, cursor.ReadTag());
    const uint32_t number = tag >> 3;
    if (number == 0) return InvalidField("request", "field number 0", "1 to 2^29 - 1");
    const FieldSchema* const field = schema.Find(number);
    if (field == nullptr) {
      return MakeError(Reason::kUnknownField, "request",
                       absl::StrCat("unknown field number ", number),
                       absl::StrCat("a field of ", v1::RotateStreamRequest::descriptor()->name()));
    }
    if (static_cast<WireType>(tag & 7) != field->wire_type) {
      return InvalidField(field->name, "another wire type",
                          number == kSequence ? "varint" : "length-delimited");
    }
    ROPE_RETURN_IF_ERROR(number == kSequence ? ReadSequence(cursor, has_sequence, message)
                                             : ReadAction(*field, cursor, message));
  }
  return absl::OkStatus();
}

std::string StreamPrefix(uint64_t sequence, int64_t rotate_bytes) {
  std::string prefix;
  AppendVarint(kSequence, sequence, prefix);
  AppendFieldHeader(kRotate, static_cast<size_t>(rotate_bytes), prefix);
  return prefix;
}

}  // namespace rope::proto
