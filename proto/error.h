// An error as a value: the reason, which a program may branch on, what is wrong (field, got, want),
// and what the caller may do. MakeError composes the text "field: got X, want Y" from the parts and
// keeps both in an absl::Status; PartsOf gives the parts back. No code reads the text. Reasons and
// parts are those of the client library. Any folder may include this header; it includes no
// Protobuf.
//
// Threading:  Functions only.
#ifndef ROPE_PROTO_ERROR_H_
#define ROPE_PROTO_ERROR_H_

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "rope/status.h"

namespace rope::proto {

using rope::Reason;

// Each reason has one status code.
constexpr absl::StatusCode CodeOf(Reason reason) {
  switch (reason) {
    case Reason::kInvalidField:
      return absl::StatusCode::kInvalidArgument;
    case Reason::kUnknownField:
    case Reason::kNotBuilt:
      return absl::StatusCode::kUnimplemented;
    case Reason::kPositionOutOfRange:
    case Reason::kRegionOutOfRange:
      return absl::StatusCode::kOutOfRange;
    case Reason::kModelNotFound:
    case Reason::kConfigIdNotFound:
    case Reason::kPreparedNotFound:
    case Reason::kRegionNotFound:
    case Reason::kServiceNotFound:
      return absl::StatusCode::kNotFound;
    case Reason::kWrongState:
    case Reason::kSharedMemoryOff:
      return absl::StatusCode::kFailedPrecondition;
    case Reason::kPermission:
      return absl::StatusCode::kPermissionDenied;
    case Reason::kQueueFull:
    case Reason::kBudgetFull:
    case Reason::kLimitExceeded:
      return absl::StatusCode::kResourceExhausted;
    case Reason::kCredentials:
      return absl::StatusCode::kUnauthenticated;
    case Reason::kDraining:
    case Reason::kConnectionLost:
      return absl::StatusCode::kUnavailable;
    case Reason::kDeadline:
      return absl::StatusCode::kDeadlineExceeded;
    case Reason::kCancelled:
      return absl::StatusCode::kCancelled;
    case Reason::kDeviceFault:
    case Reason::kInternal:
      return absl::StatusCode::kInternal;
    case Reason::kUnspecified:
      break;
  }
  return absl::StatusCode::kUnknown;
}

// The reason is kUnspecified if MakeError did not make the status.
using ErrorParts = ErrorDetail;

namespace error_internal {

inline constexpr absl::string_view kReason = "rope.error/reason";
inline constexpr absl::string_view kField = "rope.error/field";
inline constexpr absl::string_view kGot = "rope.error/got";
inline constexpr absl::string_view kWant = "rope.error/want";
inline constexpr absl::string_view kRetryDelayMs = "rope.error/retry_delay_ms";
inline constexpr absl::string_view kMayHaveExecuted = "rope.error/may_have_executed";

inline void Set(absl::string_view url, absl::string_view value, absl::Status& status) {
  if (!value.empty()) status.SetPayload(url, absl::Cord(value));
}

inline std::string Get(absl::string_view url, const absl::Status& status) {
  const auto payload = status.GetPayload(url);
  return payload.has_value() ? std::string(*payload) : std::string();
}

inline int64_t GetNumber(absl::string_view url, const absl::Status& status) {
  int64_t number = 0;
  return absl::SimpleAtoi(Get(url, status), &number) ? number : 0;
}

}  // namespace error_internal

// Marks the error of a call that may have changed its caller's memory.
inline absl::Status MarkMayHaveExecuted(absl::Status status) {
  error_internal::Set(error_internal::kMayHaveExecuted, "true", status);
  return status;
}

// An error of `parts` with the given text, for errors that are not "field: got X, want Y".
inline absl::Status MakeError(const ErrorParts& parts, absl::string_view text) {
  namespace e = error_internal;
  absl::Status status(CodeOf(parts.reason), text);
  e::Set(e::kReason, absl::StrCat(static_cast<int>(parts.reason)), status);
  e::Set(e::kField, parts.field, status);
  e::Set(e::kGot, parts.got, status);
  e::Set(e::kWant, parts.want, status);
  if (parts.retry_delay_ms > 0) {
    e::Set(e::kRetryDelayMs, absl::StrCat(parts.retry_delay_ms), status);
  }
  return parts.may_have_executed ? MarkMayHaveExecuted(std::move(status)) : status;
}

// "<field>: got <got>, want <want>"; without ", want " if `want` is empty.
inline absl::Status MakeError(const ErrorParts& parts) {
  return MakeError(parts, absl::StrCat(parts.field, ": got ", parts.got,
                                       parts.want.empty() ? "" : ", want ", parts.want));
}

inline absl::Status MakeError(Reason reason, absl::string_view field, const absl::AlphaNum& got,
                              const absl::AlphaNum& want) {
  return MakeError(ErrorParts{.field = std::string(field),
                              .got = std::string(got.Piece()),
                              .want = std::string(want.Piece()),
                              .reason = reason});
}

// INVALID_ARGUMENT.
inline absl::Status InvalidField(absl::string_view field, const absl::AlphaNum& got,
                                 const absl::AlphaNum& want) {
  return MakeError(Reason::kInvalidField, field, got, want);
}

// A file without content. REQUIRES: errno was 0 before it was opened.
inline std::string NoContentOf(absl::string_view path) {
  if (errno == 0) return absl::StrCat(path, ", which is empty");
  return absl::StrCat(path, ", which cannot be opened (", std::strerror(errno), ")");
}

// The parts that a status was made of.
inline ErrorParts PartsOf(const absl::Status& status) {
  namespace e = error_internal;
  return {.field = e::Get(e::kField, status),
          .got = e::Get(e::kGot, status),
          .want = e::Get(e::kWant, status),
          .retry_delay_ms = e::GetNumber(e::kRetryDelayMs, status),
          .may_have_executed = !e::Get(e::kMayHaveExecuted, status).empty(),
          .reason = static_cast<Reason>(e::GetNumber(e::kReason, status))};
}

// The same error of the field `field`. REQUIRES: `status` names a field.
inline absl::Status WithField(absl::string_view field, const absl::Status& status) {
  ErrorParts parts = PartsOf(status);
  parts.field = std::string(field);
  return MakeError(parts);
}

// The same error with `prefix` before its field, or before its text if it names no field.
inline absl::Status Prefixed(absl::string_view prefix, const absl::Status& status) {
  if (status.ok()) return status;
  const ErrorParts parts = PartsOf(status);
  if (!parts.field.empty()) return WithField(absl::StrCat(prefix, parts.field), status);
  const std::string text = absl::StrCat(prefix, status.message());
  if (parts.reason != Reason::kUnspecified) return MakeError(parts, text);
  return absl::Status(status.code(), text);
}

}  // namespace rope::proto

#endif  // ROPE_PROTO_ERROR_H_
