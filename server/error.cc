#include "server/error.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "server/limits.h"

namespace rope::server {
namespace {
constexpr char kRetryDelayPayload[] = "rope.server/retry_delay_ms";
constexpr char kMayHaveExecutedPayload[] = "rope.server/may_have_executed";
}  // namespace

std::string Brackets(absl::Span<const int64_t> values) {
  return absl::StrCat("[", absl::StrJoin(values, ", "), "]");
}

std::string ShortMessage(absl::string_view message) {
  constexpr absl::string_view kCut = "...";
  if (static_cast<int64_t>(message.size()) <= limits::kErrorBytesMax) return std::string(message);
  size_t end = static_cast<size_t>(limits::kErrorBytesMax) - kCut.size();
  const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
  while (end > 0 && continues(message[end])) --end;  // do not split a UTF-8 character
  return absl::StrCat(message.substr(0, end), kCut);
}

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

absl::Status Draining() {
  return absl::UnavailableError("server: draining, try another one");
}

absl::Status OutOfMemory() {
  return RetryLater("server: got a request that the system has no memory for, want a smaller one",
                    limits::kRetryDelayMs);
}

absl::Status MarkMayHaveExecuted(absl::Status status) {
  status.SetPayload(kMayHaveExecutedPayload, absl::Cord("true"));
  return status;
}

bool MayHaveExecuted(const absl::Status& status) {
  return status.GetPayload(kMayHaveExecutedPayload).has_value();
}

int64_t RetryDelayMs(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryDelayPayload);
  int64_t delay_ms = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &delay_ms)) return 0;
  return delay_ms;
}

}  // namespace rope::server
