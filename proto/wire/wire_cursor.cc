#include "proto/wire/wire_cursor.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "proto/error.h"

namespace rope::proto {
namespace {

constexpr int kTagBytesMax = 5;  // lengths have the same limit
constexpr uint64_t kLengthMax = (uint64_t{1} << 31) - 1 - 16;

}  // namespace

void FragmentedBytes::CopyTo(void* out) const {
  char* next = static_cast<char*>(out);
  for (std::string_view fragment : fragments) {
    std::memcpy(next, fragment.data(), fragment.size());
    next += fragment.size();
  }
}

WireCursor::WireCursor(absl::Span<const std::string_view> fragments) : fragments_(fragments) {
  for (std::string_view fragment : fragments) size_ += static_cast<int64_t>(fragment.size());
  Advance(0);
}

void WireCursor::Advance(size_t count) {
  offset_ += count;
  position_ += static_cast<int64_t>(count);
  while (fragment_ < fragments_.size() && offset_ == fragments_[fragment_].size()) {
    ++fragment_;
    offset_ = 0;
  }
}

// Compares with the bytes left, not with an end position: `position_ + count` could overflow.
absl::Status WireCursor::Need(int64_t count) const {
  if (count <= size_ - position_) return absl::OkStatus();
  return InvalidField("message", absl::StrCat(size_ - position_, " more bytes"), count);
}

// Reads byte by byte, because a varint may continue in the next fragment. The tenth byte holds bit
// 63 and bits beyond it; the shift drops the latter, as the generated parser does.
absl::StatusOr<uint64_t> WireCursor::ReadVarint(int bytes_max, absl::string_view name) {
  uint64_t value = 0;
  for (int i = 0; i < bytes_max; ++i) {
    ROPE_RETURN_IF_ERROR(Need(1));
    const auto byte = static_cast<uint8_t>(fragments_[fragment_][offset_]);
    Advance(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
    if (byte < 0x80) return value;
  }
  return InvalidField("message", absl::StrCat("a ", name, " of more than ", bytes_max, " bytes"),
                      absl::StrCat("at most ", bytes_max));
}

absl::StatusOr<uint32_t> WireCursor::ReadTag() {
  ROPE_ASSIGN_OR_RETURN(const uint64_t tag, ReadVarint(kTagBytesMax, "tag"));
  return static_cast<uint32_t>(tag);
}

absl::StatusOr<int64_t> WireCursor::ReadLength() {
  ROPE_ASSIGN_OR_RETURN(const uint64_t length, ReadVarint(kTagBytesMax, "length"));
  if (length <= kLengthMax) return static_cast<int64_t>(length);
  return InvalidField("message", absl::StrCat("a length of ", length, " bytes"),
                      absl::StrCat("at most ", kLengthMax));
}

// One step of the two loops below: each continues with the next fragment until it has all bytes.
// Need has checked the total before the first step.
std::string_view WireCursor::ReadBytes(int64_t count) {
  const std::string_view rest = fragments_[fragment_].substr(offset_);
  const std::string_view part = rest.substr(0, std::min(rest.size(), static_cast<size_t>(count)));
  Advance(part.size());
  return part;
}

absl::Status WireCursor::SkipField(WireType type) {
  switch (type) {
    case WireType::kVarint:
      return ReadVarint().status();
    case WireType::kFixed64:
      return ReadView(8).status();
    case WireType::kLength: {
      ROPE_ASSIGN_OR_RETURN(const int64_t length, ReadLength());
      return ReadView(length).status();
    }
    case WireType::kFixed32:
      return ReadView(4).status();
    default:
      return InvalidField("message", "a group", "none");
  }
}

absl::Status WireCursor::ReadBytes(int64_t count, std::string& out) {
  ROPE_RETURN_IF_ERROR(Need(count));
  for (const int64_t end = position_ + count; position_ < end;)
    out.append(ReadBytes(end - position_));
  return absl::OkStatus();
}

absl::StatusOr<FragmentedBytes> WireCursor::ReadView(int64_t count) {
  ROPE_RETURN_IF_ERROR(Need(count));
  FragmentedBytes view;
  view.bytes = count;
  for (const int64_t end = position_ + count; position_ < end;) {
    view.fragments.push_back(ReadBytes(end - position_));
  }
  return view;
}

}  // namespace rope::proto
