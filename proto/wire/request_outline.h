// RequestOutline: recognises a RotateRequest that differs from an earlier one in its request_id,
// its positions.start, the bytes of its payloads and the places of tensors in memory regions alone.
// It compares bytes and reads no fields: a decode step is the step before it with other numbers.
//
// Threading:  Immutable; any thread.
// Ownership:  Copies the bytes that it compares with. Payloads are views into the fragments that
//             were given.
// Limits:     A message of more than kBytesMax bytes beside its payloads has no outline.
#ifndef ROPE_PROTO_WIRE_REQUEST_OUTLINE_H_
#define ROPE_PROTO_WIRE_REQUEST_OUTLINE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "proto/wire/wire_cursor.h"

namespace rope::proto {

class RequestOutline {
 public:
  static constexpr int64_t kBytesMax = 4096;

  // A RegionSpan of `tensors[].array.region` or of `output.regions`.
  struct Span {
    bool is_output = false;
    uint64_t region_id = 0;
    uint64_t offset = 0;
  };
  // Where messages of one outline differ.
  struct Values {
    std::string request_id;                 // ASCII; empty where the outlined message has none
    std::optional<int64_t> start;           // of `positions`; unset where the outlined one has none
    std::vector<FragmentedBytes> payloads;  // in their order on the wire, as in SplitMessage
    std::vector<Span> spans;                // in their order on the wire
  };

  // Of a message that Split takes. Payloads and spans beside those of `tensors[].array`, of the
  // arrays of `positions` (payloads alone) and of `output` are compared as the rest is. nullopt:
  // too large; a request_id beyond ASCII, with which nothing would match.
  static std::optional<RequestOutline> Of(absl::Span<const std::string_view> fragments);

  int64_t message_bytes() const { return message_bytes_; }
  int64_t payloads() const { return payloads_; }

  // Whether a message is the outlined one with other values, each as long on the wire as there.
  // `values` are unspecified where it is not.
  bool Matches(absl::Span<const std::string_view> fragments, Values& values) const;

 private:
  // Spans are gaps of no bytes, where they begin; what follows is of the span that began last.
  enum class Kind { kRequestId, kStart, kPayload, kInputSpan, kOutputSpan, kRegionId, kOffset };
  // Bytes that may differ.
  struct Gap {
    Kind kind = Kind::kPayload;
    int64_t position = 0;  // in the message
    int64_t bytes = 0;
  };
  class Finder;

  RequestOutline() = default;
  static bool ReadGap(const Gap& gap, WireCursor& cursor, Values& values);

  int64_t message_bytes_ = 0;
  int64_t payloads_ = 0;
  std::string text_;  // everything but gaps
  int64_t spans_ = 0;
  absl::InlinedVector<Gap, 4> gaps_;
};

}  // namespace rope::proto

#endif  // ROPE_PROTO_WIRE_REQUEST_OUTLINE_H_
