// WireCursor: a bounds-checked reader of protobuf wire format. The message may lie in several
// buffers. The cursor reads varints, tags and lengths; it has no schema.
//
// Threading:  Confined to one thread.
// Ownership:  Borrows the fragments; returned views point into them.
// Errors:     INVALID_ARGUMENT: truncated; a varint of more than 10 bytes; a tag or length of more
//             than 5 bytes; a length of more than 2^31 - 17 bytes, or past the end.
// Limits:     The same as those of the generated parser, to the byte.
#ifndef ROPE_PROTO_WIRE_WIRE_CURSOR_H_
#define ROPE_PROTO_WIRE_WIRE_CURSOR_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace rope::proto {

enum class WireType : uint32_t { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };

// A borrowed sequence of bytes in one or more buffers.
struct FragmentedBytes {
  absl::InlinedVector<std::string_view, 2> fragments;
  int64_t bytes = 0;

  // Copies all bytes to `out`. REQUIRES: `out` has room for `bytes` bytes.
  void CopyTo(void* out) const;
};

class WireCursor {
 public:
  explicit WireCursor(absl::Span<const std::string_view> fragments);

  // Bytes read so far, and the size of the whole message.
  int64_t position() const { return position_; }
  int64_t size() const { return size_; }

  absl::StatusOr<uint64_t> ReadVarint() { return ReadVarint(/*bytes_max=*/10, "varint"); }
  // Drops bits above the 32nd.
  absl::StatusOr<uint32_t> ReadTag();
  // The length of the value that follows. The caller checks it against the message's end.
  absl::StatusOr<int64_t> ReadLength();
  // Skips the value of a field. INVALID_ARGUMENT: a group.
  absl::Status SkipField(WireType type);
  // Appends the next `count` bytes to `out`.
  absl::Status ReadBytes(int64_t count, std::string& out);
  // Returns views of the next `count` bytes, without copying.
  absl::StatusOr<FragmentedBytes> ReadView(int64_t count);

 private:
  absl::Status Need(int64_t count) const;
  // Returns up to `count` bytes, but not past the current fragment. REQUIRES: a byte is left.
  std::string_view ReadBytes(int64_t count);
  // Reads a varint of at most `bytes_max` bytes; drops bits above the 64th.
  absl::StatusOr<uint64_t> ReadVarint(int bytes_max, absl::string_view name);
  // Moves forward by `count` bytes of the current fragment, then past all fragments that are used
  // up. Afterwards the current fragment has a byte left, or the message is at its end.
  void Advance(size_t count);

  absl::Span<const std::string_view> fragments_;
  size_t fragment_ = 0;  // index of the current fragment
  size_t offset_ = 0;    // in the current fragment
  int64_t position_ = 0;
  int64_t size_ = 0;
};

}  // namespace rope::proto

#endif  // ROPE_PROTO_WIRE_WIRE_CURSOR_H_
