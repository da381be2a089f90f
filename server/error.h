// Errors of the request path: "field: got X, want Y" and retry delays.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_ERROR_H_
#define ROPE_SERVER_ERROR_H_

#include <cstdint>
#include <new>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace rope::server {

// "<field>: got <got>, want <want>".
inline absl::Status InvalidField(absl::string_view field, const absl::AlphaNum& got,
                                 const absl::AlphaNum& want) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": got ", got.Piece(), ", want ", want.Piece()));
}

// Formats a shape or another list for an error: "[2, 3]".
std::string Brackets(absl::Span<const int64_t> values);

// Cuts an error's message to limits::kErrorBytesMax bytes, between characters.
std::string ShortMessage(absl::string_view message);

// Returns the status with `prefix` before its message. Keeps its payloads.
absl::Status Prefixed(absl::string_view prefix, const absl::Status& status);

// RESOURCE_EXHAUSTED that a client may retry after `delay_ms`.
absl::Status RetryLater(absl::string_view message, int64_t delay_ms);

// Marks the status of a call that may have changed its caller's memory.
absl::Status MarkMayHaveExecuted(absl::Status status);
// Whether the status is marked so.
bool MayHaveExecuted(const absl::Status& status);

// The delay that RetryLater set; 0 if there is none.
int64_t RetryDelayMs(const absl::Status& status);

// UNAVAILABLE: the server is draining.
absl::Status Draining();

// RESOURCE_EXHAUSTED with a retry delay: the system has no memory left.
absl::Status OutOfMemory();

// Returns the result of `step`, or OutOfMemory if `step` throws std::bad_alloc.
template <typename Step>
absl::Status WithinMemory(const Step& step) {
  try {
    return step();
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  }
}

}  // namespace rope::server

#endif  // ROPE_SERVER_ERROR_H_
