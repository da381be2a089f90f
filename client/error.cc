#include "client/error.h"

#include <iterator>
#include <string>

#include "proto/error.h"

namespace rope::client {

Status ToStatus(const absl::Status& status) {
  return Status(static_cast<StatusCode>(status.raw_code()), std::string(status.message()),
                proto::PartsOf(status));
}

Status MakeError(Reason reason, absl::string_view field, const absl::AlphaNum& got,
                 const absl::AlphaNum& want) {
  return ToStatus(proto::MakeError(reason, field, got, want));
}

Status MakeError(Reason reason, absl::string_view text, bool may_have_executed) {
  return ToStatus(
      proto::MakeError({.may_have_executed = may_have_executed, .reason = reason}, text));
}

Status Within(absl::string_view parent, const Status& status) {
  const ErrorDetail& detail = status.detail();
  return MakeError(detail.reason, absl::StrCat(parent, ".", detail.field), detail.got, detail.want);
}

ErrorDetail DetailOf(const v1::Error& error) {
  return {.field = error.field(),
          .got = error.got(),
          .want = error.want(),
          .retry_delay_ms = error.retry_delay_ms(),
          .may_have_executed = error.may_have_executed(),
          .reason = v1::Reason_IsValid(error.reason()) ? static_cast<Reason>(error.reason())
                                                       : Reason::kUnspecified};
}

Reason ReasonOf(StatusCode code) {
  for (const Reason reason : {Reason::kConnectionLost, Reason::kDeadline, Reason::kCancelled,
                              Reason::kLimitExceeded, Reason::kNotBuilt, Reason::kInternal}) {
    const absl::StatusCode its = proto::CodeOf(reason);
    if (static_cast<int>(its) == static_cast<int>(code)) return reason;
  }
  return Reason::kUnspecified;
}

}  // namespace rope::client

namespace rope {

const char* Name(StatusCode code) {
  constexpr const char* kNames[] = {"OK",
                                    "CANCELLED",
                                    "UNKNOWN",
                                    "INVALID_ARGUMENT",
                                    "DEADLINE_EXCEEDED",
                                    "NOT_FOUND",
                                    "ALREADY_EXISTS",
                                    "PERMISSION_DENIED",
                                    "RESOURCE_EXHAUSTED",
                                    "FAILED_PRECONDITION",
                                    "ABORTED",
                                    "OUT_OF_RANGE",
                                    "UNIMPLEMENTED",
                                    "INTERNAL",
                                    "UNAVAILABLE",
                                    "DATA_LOSS",
                                    "UNAUTHENTICATED"};
  const auto number = static_cast<size_t>(code);
  // gRPC does not define another number.
  return number < std::size(kNames) ? kNames[number] : Name(StatusCode::kUnknown);
}

// The schema's name without "REASON_".
const char* Name(Reason reason) {
  const auto number = static_cast<int>(reason);
  const v1::Reason known =
      v1::Reason_IsValid(number) ? static_cast<v1::Reason>(number) : v1::REASON_UNSPECIFIED;
  return v1::Reason_Name(known).c_str() + std::size("REASON_") - 1;
}

std::string Status::ToString() const {
  if (ok()) return "OK";
  return std::string(Name(code_)) + ": " + message_;
}

}  // namespace rope
