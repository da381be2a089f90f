// Matchers for absl::Status and absl::StatusOr, which the packaged Abseil lacks.
#ifndef ROPE_TESTS_SUPPORT_STATUS_MATCHERS_H_
#define ROPE_TESTS_SUPPORT_STATUS_MATCHERS_H_

#include <gmock/gmock.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace rope::testing {

inline const absl::Status& StatusOf(const absl::Status& status) {
  return status;
}
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

MATCHER(IsOk, "is OK") {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).ok();
}

// StatusIs(code, matcher of the message).
MATCHER_P2(StatusIs, code, message, "") {
  const absl::Status& status = StatusOf(arg);
  *result_listener << status.ToString();
  return status.code() == code &&
         ::testing::ExplainMatchResult(message, std::string(status.message()), result_listener);
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_STATUS_MATCHERS_H_
