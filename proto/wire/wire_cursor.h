// WireCursor: a bounds-checked reader of protobuf wire format over a message that lies in several
// buffers. Knows varints, tags and lengths, and no schema.
//
// Threading:  Confined to one thread.
// Ownership:  Borrows the fragments; views that it hands out point into them.
// Errors:     INVALID_ARGUMENT: truncated, a varint of more than 10 bytes, a tag or a length of
//             more than 5, a length of 2 GiB or past the end.
// Limits:     Those of the generated parser, byte for byte.
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

// Bytes that lie in one or more buffers, in order. Borrowed.
struct FragmentedBytes {
  absl::InlinedVector<std::string_view, 2> fragments;
  int64_t bytes = 0;

  // Writes all bytes to `out`, which has room for them.
  void CopyTo(void* out) const;
};

class WireCursor {
 public:
  explicit WireCursor(absl::Span<const std::string_view> fragments);

  // Bytes read so far, and bytes there are.
  int64_t position() const { return position_; }
  int64_t size() const { return size_; }

  absl::StatusOr<uint64_t> ReadVarint();
  // Bits above the 32nd are dropped.
  absl::StatusOr<uint32_t> ReadTag();
  // Bytes that the value which follows takes; they may end past the message.
  absl::StatusOr<int64_t> ReadLength();
  // Moves past the value of a field of a type other than kLength. INVALID_ARGUMENT: a group, too.
  absl::Status SkipScalar(WireType type);
  // Moves past the next bytes if they are `bytes`; else they may be read in part.
  bool Consume(std::string_view bytes);
  // Appends the next `count` bytes to `out`.
  absl::Status ReadBytes(int64_t count, std::string& out);
  // Views of the next `count` bytes, without a copy.
  absl::StatusOr<FragmentedBytes> ReadView(int64_t count);

 private:
  absl::Status Need(int64_t count) const;
  // The next bytes, at most `count`, as far as they lie in one fragment. REQUIRES: there are some.
  std::string_view ReadBytes(int64_t count);
  // A varint of at most `bytes_max` bytes, without the bits above the 64th.
  absl::StatusOr<uint64_t> ReadVarint(int bytes_max, absl::string_view name);
  // Moves past fragments that are used up.
  void Advance(size_t count);

  absl::Span<const std::string_view> fragments_;
  size_t fragment_ = 0;  // index of the current fragment
  size_t offset_ = 0;    // within it
  int64_t position_ = 0;
  int64_t size_ = 0;
};

}  // namespace rope::proto

#endif  // ROPE_PROTO_WIRE_WIRE_CURSOR_H_
