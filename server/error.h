// The errors of the request path (proto/error.h), and those that several rooms make.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_ERROR_H_
#define ROPE_SERVER_ERROR_H_

#include <cstdint>
#include <exception>
#include <new>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/error.h"
#include "server/limits.h"

namespace rope::server {

using proto::InvalidField;
using proto::MakeError;
using proto::MarkMayHaveExecuted;
using proto::Prefixed;
using proto::Reason;

// Formats a shape or another list for an error: "[2, 3]".
std::string Brackets(absl::Span<const int64_t> values);

// Cuts an error's text to `bytes_max` bytes, between characters.
std::string ShortText(absl::string_view text, int64_t bytes_max = limits::kErrorBytesMax);

// RESOURCE_EXHAUSTED if `got` is above `most`: "FIELD: got 3 rows, want at most 2 in one call" for
// the unit " rows" and the rest " in one call".
absl::Status CheckAtMost(int64_t got, int64_t most, absl::string_view field, absl::string_view unit,
                         absl::string_view rest = "");

// RESOURCE_EXHAUSTED that a client may retry after limits::kRetryDelayMs.
absl::Status RetryLater(Reason reason, absl::string_view field, absl::string_view got,
                        absl::string_view want);

// UNAVAILABLE: the server is draining.
absl::Status Draining();

// RESOURCE_EXHAUSTED with a retry delay: the system has no memory left.
absl::Status OutOfMemory();

// ABORTED, which no client sees: the side thread goes on planning (Plan::may_take_long). Nothing
// else in the server is ABORTED.
absl::Status NeedsSideThread();
inline bool IsNeedsSideThread(const absl::Status& status) {
  return status.code() == absl::StatusCode::kAborted;
}

// INTERNAL: this program's code threw, which is a defect of it. Only the call fails.
absl::Status Defect(const std::exception& thrown);

// Returns the result of `step`, an absl::Status or absl::StatusOr, or OutOfMemory if `step` throws
// std::bad_alloc, and Defect if it throws another exception.
template <typename Step>
auto WithoutExceptions(const Step& step) -> decltype(step()) {
  try {
    return step();
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  } catch (const std::exception& thrown) {
    return Defect(thrown);
  }
}

}  // namespace rope::server

#endif  // ROPE_SERVER_ERROR_H_
