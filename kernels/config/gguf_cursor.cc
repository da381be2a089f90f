#include "kernels/config/gguf_cursor.h"

#include <algorithm>

#include "kernels/error.h"
#include "kernels/status_macros.h"

namespace rope::kernels {
namespace {

constexpr uint64_t kBufferBytes = 64 << 10;
constexpr uint64_t kHeaderBytesMax = 256 << 20;

}  // namespace

void GgufCursor::Enter(std::string_view part, uint64_t index, uint64_t count) {
  part_ = part;
  index_ = index;
  count_ = count;
}

std::string GgufCursor::Part() const {
  return count_ == 0 ? std::string(part_) : StrCat(part_, " ", index_ + 1, " of ", count_);
}

absl::Status GgufCursor::Invalid(std::string_view got, std::string_view want) const {
  return InvalidField("gguf", StrCat(got, " in ", Part()), want);
}

absl::Status GgufCursor::Need(uint64_t count) const {
  if (count > source_.size() - position_) {
    return InvalidField("gguf", StrCat(source_.size(), " bytes"),
                        StrCat(Part(), ": ", count, " bytes at byte ", position_));
  }
  if (position_ + count > kHeaderBytesMax) {
    return InvalidField("gguf",
                        StrCat("a header of more than ", kHeaderBytesMax, " bytes in ", Part()),
                        "at most that");
  }
  return absl::OkStatus();
}

absl::Status GgufCursor::Copy(absl::Span<char> bytes) {
  ROPE_RETURN_IF_ERROR(Need(bytes.size()));
  while (!bytes.empty()) {
    if (position_ < buffer_offset_ || position_ >= buffer_offset_ + buffer_.size()) {
      buffer_.resize(static_cast<size_t>(std::min(kBufferBytes, source_.size() - position_)));
      buffer_offset_ = position_;
      ROPE_RETURN_IF_ERROR(source_.Read(position_, absl::MakeSpan(buffer_.data(), buffer_.size())));
    }
    const auto start = static_cast<size_t>(position_ - buffer_offset_);
    const size_t count = std::min(bytes.size(), buffer_.size() - start);
    std::memcpy(bytes.data(), buffer_.data() + start, count);
    bytes.remove_prefix(count);
    position_ += count;
  }
  return absl::OkStatus();
}

absl::Status GgufCursor::Skip(uint64_t count) {
  ROPE_RETURN_IF_ERROR(Need(count));
  position_ += count;
  return absl::OkStatus();
}

absl::StatusOr<std::string> GgufCursor::String(uint64_t most) {
  ROPE_ASSIGN_OR_RETURN(const uint64_t length, Read<uint64_t>());
  ROPE_RETURN_IF_ERROR(Need(length));
  if (length > most)
    return Invalid(StrCat("a name of ", length, " bytes"), StrCat("at most ", most));
  std::string text(static_cast<size_t>(length), '\0');
  ROPE_RETURN_IF_ERROR(Copy(absl::MakeSpan(text.data(), text.size())));
  return text;
}

absl::Status GgufCursor::SkipString() {
  ROPE_ASSIGN_OR_RETURN(const uint64_t length, Read<uint64_t>());
  return Skip(length);
}

}  // namespace rope::kernels
