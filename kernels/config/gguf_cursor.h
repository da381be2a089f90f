// GgufCursor: reads the header of a GGUF file in order. Internal to gguf_header.
//
// Threading:  Confined to one thread.
// Ownership:  A view of the source, which must outlive it.
// Errors:     INVALID_ARGUMENT if the source ends early or the header is too long, or an error of
//             the source. Messages name the part of the file that was being read.
// Limits:     256 MiB of header; a buffer of 64 KiB.
#ifndef ROPE_KERNELS_CONFIG_GGUF_CURSOR_H_
#define ROPE_KERNELS_CONFIG_GGUF_CURSOR_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/config/byte_source.h"

namespace rope::kernels {

class GgufCursor {
 public:
  explicit GgufCursor(const ByteSource& source) : source_(source) {}

  // Offset of the next byte.
  uint64_t position() const { return position_; }
  // Names the part that is read next, for messages: "metadata key 3 of 34", counted from 0 here.
  void Enter(std::string_view part) { Enter(part, 0, 0); }
  void Enter(std::string_view part, uint64_t index, uint64_t count);
  // INVALID_ARGUMENT "gguf: got `got` in `part`, want `want`".
  absl::Status Invalid(std::string_view got, std::string_view want) const;

  // A little-endian number.
  template <typename T>
  absl::StatusOr<T> Read() {
    T value;
    char bytes[sizeof(T)];
    if (absl::Status status = Copy(absl::MakeSpan(bytes)); !status.ok()) return status;
    std::memcpy(&value, bytes, sizeof(T));
    return value;
  }
  absl::Status Copy(absl::Span<char> bytes);
  absl::Status Skip(uint64_t count);
  // A length of 64 bits and as many bytes. INVALID_ARGUMENT if there are more than `most`.
  absl::StatusOr<std::string> String(uint64_t most);
  absl::Status SkipString();

 private:
  // The name of the part, with its number.
  std::string Part() const;
  // Checks that `count` more bytes exist, before anything of that size is allocated.
  absl::Status Need(uint64_t count) const;

  const ByteSource& source_;
  uint64_t position_ = 0;
  std::string buffer_;
  uint64_t buffer_offset_ = 0;  // of the buffer's first byte in the source
  std::string_view part_ = "a header";
  uint64_t index_ = 0;
  uint64_t count_ = 0;  // 0: the part has no number
};

}  // namespace rope::kernels

#endif  // ROPE_KERNELS_CONFIG_GGUF_CURSOR_H_
