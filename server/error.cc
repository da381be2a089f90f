#include "server/error.h"

#include "absl/strings/str_join.h"

namespace rope::server {

std::string Brackets(absl::Span<const int64_t> values) {
  return absl::StrCat("[", absl::StrJoin(values, ", "), "]");
}

std::string ShortText(absl::string_view text, int64_t bytes_max) {
  constexpr absl::string_view kCut = "...";
  if (static_cast<int64_t>(text.size()) <= bytes_max) return std::string(text);
  size_t end = static_cast<size_t>(bytes_max) - kCut.size();
  const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
  while (end > 0 && continues(text[end])) --end;  // do not split a UTF-8 character
  return absl::StrCat(text.substr(0, end), kCut);
}

absl::Status CheckAtMost(int64_t got, int64_t most, absl::string_view field, absl::string_view unit,
                         absl::string_view rest) {
  if (got <= most) return absl::OkStatus();
  return MakeError(Reason::kLimitExceeded, field, absl::StrCat(got, unit),
                   absl::StrCat("at most ", most, rest));
}

absl::Status RetryLater(Reason reason, absl::string_view field, absl::string_view got,
                        absl::string_view want) {
  return MakeError({.field = std::string(field),
                    .got = std::string(got),
                    .want = std::string(want),
                    .retry_delay_ms = limits::kRetryDelayMs,
                    .reason = reason});
}

absl::Status Draining() {
  return MakeError({.reason = Reason::kDraining}, "server: draining, try another one");
}

absl::Status NeedsSideThread() {
  return absl::AbortedError("planning takes long");
}

absl::Status OutOfMemory() {
  return RetryLater(Reason::kBudgetFull, "server", "a request that the system has no memory for",
                    "a smaller one");
}

absl::Status Defect(const std::exception& thrown) {
  return MakeError(Reason::kInternal, "request", absl::StrCat("an exception: ", thrown.what()),
                   "none: this is a defect of the server");
}

}  // namespace rope::server
