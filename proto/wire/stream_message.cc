#include "proto/wire/stream_message.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "proto/error.h"
#include "proto/wire/message_join.h"
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
    switch (number) {
      case kSequence:
        return Sequence(type);
      case kCancel:
        return Cancel(type);
      case kRotate:
        return Rotate(type);
      default:
        return MakeError(
            Reason::kUnknownField, "request", absl::StrCat("unknown field number ", number),
            absl::StrCat("a field of ", v1::RotateStreamRequest::descriptor()->name()));
    }
  }

  absl::Status Sequence(WireType type) {
    if (type != WireType::kVarint) return InvalidField("sequence", "another wire type", "varint");
    const auto value = cursor_.ReadVarint();
    if (!value.ok()) return value.status();
    if (has_sequence_) return InvalidField("sequence", "it more than once", "it once");
    has_sequence_ = true;
    message_.sequence = *value;
    return absl::OkStatus();
  }

  // A CancelRequest has no fields.
  absl::Status Cancel(WireType type) {
    const auto value = Delimited("cancel", type);
    if (!value.ok()) return value.status();
    if (message_.cancel) return InvalidField("cancel", "it more than once", "it once");
    if (value->bytes > 0) return InvalidField("cancel", "fields", "an empty message");
    message_.cancel = true;
    return CheckOneAction();
  }

  absl::Status Rotate(WireType type) {
    auto value = Delimited("rotate", type);
    if (!value.ok()) return value.status();
    if (message_.rotate.has_value()) return InvalidField("rotate", "it more than once", "it once");
    message_.rotate = *std::move(value);
    return CheckOneAction();
  }

  absl::Status CheckOneAction() const {
    if (!message_.cancel || !message_.rotate.has_value()) return absl::OkStatus();
    return InvalidField("request", "cancel and rotate", "exactly one of cancel, rotate");
  }

  absl::StatusOr<FragmentedBytes> Delimited(absl::string_view field, WireType type) {
    if (type != WireType::kLength)
      return InvalidField(field, "another wire type", "length-delimited");
    const auto length = cursor_.ReadLength();
    if (!length.ok()) return length.status();
    return cursor_.ReadView(*length);
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
