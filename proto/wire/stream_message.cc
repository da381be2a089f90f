#include "proto/wire/stream_message.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/error.h"
#include "proto/wire/message_join.h"
#include "proto/wire/schema.h"
#include "rope/v1/rotate.pb.h"

namespace rope::proto {
namespace {

// Requests and responses have the same numbers, so that one prefix serves both.
constexpr uint32_t kSequence = v1::RotateStreamRequest::kSequenceFieldNumber;
constexpr uint32_t kCancel = v1::RotateStreamRequest::kCancelFieldNumber;
constexpr uint32_t kRotate = v1::RotateStreamRequest::kRotateFieldNumber;
static_assert(kSequence == v1::RotateStreamResponse::kSequenceFieldNumber);
static_assert(kRotate == v1::RotateStreamResponse::kRotateFieldNumber);

class Reader {
 public:
  Reader(absl::Span<const std::string_view> fragments, StreamMessage& message)
      : cursor_(fragments), message_(message) {}

  absl::Status Run() {
    while (cursor_.position() < cursor_.size()) {
      const auto tag = cursor_.ReadTag();
      if (!tag.ok()) return tag.status();
      const uint32_t number = *tag >> 3;
      const auto type = static_cast<WireType>(*tag & 7);
      if (number == 0) return InvalidField("request", "field number 0", "1 to 2^29 - 1");
      if (absl::Status status = Field(number, type); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Field(uint32_t number, WireType type) {
    static const Schema& schema = Schema::Of(v1::RotateStreamRequest::descriptor());
    const FieldSchema* const field = schema.Find(number);
    if (field == nullptr) {
      return MakeError(Reason::kUnknownField, "request",
                       absl::StrCat("unknown field number ", number),
                       absl::StrCat("a field of ", v1::RotateStreamRequest::descriptor()->name()));
    }
    if (type != field->wire_type) {
      return InvalidField(field->name, "another wire type",
                          number == kSequence ? "varint" : "length-delimited");
    }
    return number == kSequence ? Sequence() : Action(*field);
  }

  absl::Status Sequence() {
    const auto value = cursor_.ReadVarint();
    if (!value.ok()) return value.status();
    if (has_sequence_) return InvalidField("sequence", "it more than once", "it once");
    has_sequence_ = true;
    message_.sequence = *value;
    return absl::OkStatus();
  }

  // `cancel`, which has no fields, or `rotate`.
  absl::Status Action(const FieldSchema& field) {
    const auto length = cursor_.ReadLength();
    if (!length.ok()) return length.status();
    auto value = cursor_.ReadView(*length);
    if (!value.ok()) return value.status();
    const bool is_cancel = field.number == kCancel;
    if (is_cancel ? message_.cancel : message_.rotate.has_value()) {
      return InvalidField(field.name, "it more than once", "it once");
    }
    if (is_cancel && value->bytes > 0) return InvalidField("cancel", "fields", "an empty message");
    if (message_.cancel || message_.rotate.has_value()) {
      return InvalidField("request", "cancel and rotate", "exactly one of cancel, rotate");
    }
    message_.cancel = is_cancel;
    if (!is_cancel) message_.rotate = *std::move(value);
    return absl::OkStatus();
  }

  WireCursor cursor_;
  StreamMessage& message_;
  bool has_sequence_ = false;
};

}  // namespace

absl::Status ReadStreamMessage(absl::Span<const std::string_view> fragments,
                               StreamMessage& message) {
  return Reader(fragments, message).Run();
}

std::string StreamPrefix(uint64_t sequence, int64_t rotate_bytes) {
  std::string prefix;
  AppendVarint(kSequence, sequence, prefix);
  AppendFieldHeader(kRotate, static_cast<size_t>(rotate_bytes), prefix);
  return prefix;
}

}  // namespace rope::proto
