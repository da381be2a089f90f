#include "rope/status.h"

#include <iterator>

#include "rope/v1/rotate.pb.h"

namespace rope {
namespace {

// By number.
constexpr const char* kCodeNames[] = {
    "OK",
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
    "UNAUTHENTICATED",
};

}  // namespace

const char* Name(StatusCode code) {
  const auto number = static_cast<size_t>(code);
  // gRPC does not define another number.
  return number < std::size(kCodeNames) ? kCodeNames[number] : Name(StatusCode::kUnknown);
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
