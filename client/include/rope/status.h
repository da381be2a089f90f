// rope::Status and rope::Result<T>: how every call of the client library ends.
//
// No gRPC, Protobuf or Abseil type appears here, so that a program is not tied to ours.
//
// Threading:  Values.
#ifndef ROPE_STATUS_H_
#define ROPE_STATUS_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

namespace rope {

// The numbers are gRPC's.
enum class StatusCode {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

// "INVALID_ARGUMENT" and so on.
const char* Name(StatusCode code);

// Where a request went wrong, as the server says it.
struct ErrorDetail {
  std::string field = {};  // path of the field at fault; empty where none is
  std::string got = {};
  std::string want = {};
  int64_t retry_delay_ms = 0;  // > 0: the same call may succeed after that long
  bool executed = false;       // an in-place call may have run: so it was said, or nobody knows
};

class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  Status(StatusCode code, std::string message, ErrorDetail detail = {})
      : code_(code), message_(std::move(message)), detail_(std::move(detail)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const ErrorDetail& detail() const { return detail_; }
  // "INVALID_ARGUMENT: rope.config.factor: got 0, want a number > 0", or "OK".
  std::string ToString() const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
  ErrorDetail detail_;
};

// A value, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  // REQUIRES: not OK.
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  // REQUIRES: ok(). Prints the status and stops the process otherwise.
  T& value() & { return Checked(); }
  const T& value() const& { return const_cast<Result*>(this)->Checked(); }
  T&& value() && { return std::move(Checked()); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  T& Checked() {
    if (!value_.has_value()) {
      std::fprintf(stderr, "rope::Result without a value: %s\n", status_.ToString().c_str());
      std::abort();
    }
    return *value_;
  }

  Status status_;
  std::optional<T> value_;
};

}  // namespace rope

#endif  // ROPE_STATUS_H_
