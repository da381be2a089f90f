// Matchers for absl::Status and absl::StatusOr, which the packaged Abseil lacks, and for Status and
// Result of the client library.
#ifndef ROPE_TESTS_SUPPORT_STATUS_MATCHERS_H_
#define ROPE_TESTS_SUPPORT_STATUS_MATCHERS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/support/matchers.h"

namespace rope::testing {

// The status of a status or of a result.
template <typename T>
const auto& StatusOf(const T& result) {
  if constexpr (requires { result.status(); }) {
    return result.status();
  } else {
    return result;
  }
}

MATCHER(IsOk, "is OK") {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).ok();
}
// Declares `name`, a status or result that must be OK.
#define ASSERT_OK(name, ...)       \
  const auto name = (__VA_ARGS__); \
  ASSERT_THAT(name, ::rope::testing::IsOk())

// StatusIs(code, matcher of the message).
MATCHER_P2(StatusIs, code, message, "") {
  const auto& status = StatusOf(arg);
  *result_listener << status.ToString();
  return status.code() == code &&
         ::testing::ExplainMatchResult(message, std::string(status.message()), result_listener);
}

// The status of this code whose message has the text.
inline auto Fails(absl::StatusCode code, const std::string& text) {
  return StatusIs(code, ::testing::HasSubstr(text));
}
inline auto IsInvalid(const std::string& text) {
  return Fails(absl::StatusCode::kInvalidArgument, text);
}
inline auto IsExhausted(const std::string& text) {
  return Fails(absl::StatusCode::kResourceExhausted, text);
}
inline auto IsNotFound(const std::string& text) {
  return Fails(absl::StatusCode::kNotFound, text);
}
inline auto IsOutOfRange(const std::string& text) {
  return Fails(absl::StatusCode::kOutOfRange, text);
}
inline auto IsPrecondition(const std::string& text) {
  return Fails(absl::StatusCode::kFailedPrecondition, text);
}
inline auto IsUnavailable(const std::string& text) {
  return Fails(absl::StatusCode::kUnavailable, text);
}
inline auto IsUnimplemented(const std::string& text) {
  return Fails(absl::StatusCode::kUnimplemented, text);
}
inline auto IsInternal(const std::string& text) {
  return Fails(absl::StatusCode::kInternal, text);
}

}  // namespace rope::testing

namespace rope {

using testing::Fails;
using testing::IsExhausted;
using testing::IsInternal;
using testing::IsInvalid;
using testing::IsNotFound;
using testing::IsOk;
using testing::IsOutOfRange;
using testing::IsPrecondition;
using testing::IsUnavailable;
using testing::IsUnimplemented;
using testing::StatusIs;

}  // namespace rope

#endif  // ROPE_TESTS_SUPPORT_STATUS_MATCHERS_H_
