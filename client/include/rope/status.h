// rope::Status and rope::Result<T>: the outcome of every call of the client library.
//
// This header uses no gRPC, Protobuf or Abseil type, so a program's code does not depend on them.
//
// Threading:  Values.
#ifndef ROPE_STATUS_H_
#define ROPE_STATUS_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace rope {

// The values are those of gRPC.
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

// "INVALID_ARGUMENT", "UNAVAILABLE" and so on.
const char* Name(StatusCode code);

// Why a call failed, for a program to branch on: the values of rope.v1.Reason, where each is
// explained. A reason has one status code.
enum class Reason {
  kUnspecified = 0,  // or one that this library does not know
  kInvalidField = 1,
  kUnknownField = 2,
  kNotBuilt = 3,
  kPositionOutOfRange = 4,
  kRegionOutOfRange = 5,
  kModelNotFound = 6,
  kConfigIdNotFound = 7,
  kRegionNotFound = 8,
  kServiceNotFound = 9,
  kWrongState = 12,
  kSharedMemoryOff = 13,
  kPermission = 14,
  kQueueFull = 15,
  kBudgetFull = 16,
  kLimitExceeded = 17,
  kDraining = 18,
  kConnectionLost = 19,
  kDeadline = 20,
  kCancelled = 21,
  kDeviceFault = 22,
  kInternal = 23,
  kPreparedNotFound = 24,
  kCredentials = 25,
};

// "INVALID_FIELD", "QUEUE_FULL" and so on.
const char* Name(Reason reason);

// What is wrong, of an error of the server or of the library.
struct ErrorDetail {
  std::string field = {};  // path of the faulty field; empty if the error is about no field
  std::string got = {};
  std::string want = {};
  int64_t retry_delay_ms = 0;  // > 0: the same call may succeed after this delay
  // True: the request may have run, so an in-place call may have changed its tensors. Either the
  // server says so, or its answer never arrived.
  bool may_have_executed = false;
  Reason reason = Reason::kUnspecified;
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

// What Result::value throws: what() says the status.
class BadResult : public std::runtime_error {
 public:
  explicit BadResult(Status status)
      : std::runtime_error("rope::Result without a value: " + status.ToString()),
        status_(std::move(status)) {}
  const Status& status() const { return status_; }

 private:
  Status status_;
};

// A value, or the error Status that explains why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  // REQUIRES: !status.ok().
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  // REQUIRES: ok(). Otherwise throws BadResult; a program that is compiled without exceptions
  // prints the status and aborts.
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
#ifdef __cpp_exceptions
      throw BadResult(status_);
#else
      std::fprintf(stderr, "rope::Result without a value: %s\n", status_.ToString().c_str());
      std::abort();
#endif
    }
    return *value_;
  }

  Status status_;
  std::optional<T> value_;
};

}  // namespace rope

#endif  // ROPE_STATUS_H_
