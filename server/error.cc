#include "server/error.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"

namespace rope::server {
namespace {
constexpr char kRetryDelayPayload[] = "rope.server/retry_delay_ms";
}  // namespace

absl::Status Prefixed(absl::string_view prefix, const absl::Status& status) {
  if (status.ok()) return status;
  absl::Status result(status.code(), absl::StrCat(prefix, status.message()));
  status.ForEachPayload([&result](absl::string_view url, const absl::Cord& payload) {
    result.SetPayload(url, payload);
  });
  return result;
}

absl::Status RetryLater(absl::string_view message, int64_t delay_ms) {
  absl::Status status = absl::ResourceExhaustedError(message);
  status.SetPayload(kRetryDelayPayload, absl::Cord(absl::StrCat(delay_ms)));
  return status;
}

int64_t RetryDelayMs(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryDelayPayload);
  int64_t delay_ms = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &delay_ms)) return 0;
  return delay_ms;
}

}  // namespace rope::server
