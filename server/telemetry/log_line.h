// Helpers that write log lines. Text from clients is quoted, and lines that a client can cause
// repeatedly are rate-limited by kind.
//
// Threading:  Thread-safe.
// Limits:     Per kind, the rate of LogLimiter.
#ifndef ROPE_SERVER_TELEMETRY_LOG_LINE_H_
#define ROPE_SERVER_TELEMETRY_LOG_LINE_H_

#include <spdlog/spdlog.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace rope::server {

// Returns `text` in double quotes, so that any text stays one field of one line. Quotes,
// backslashes, control characters, invisible characters and invalid UTF-8 become C escapes (\n, or
// \x and two digits for each byte). Other characters are unchanged.
std::string Quoted(absl::string_view text);

// The suffix of a line that follows `lines` dropped ones of its kind: " left_out=7", or nothing.
std::string LeftOut(int64_t lines);

// Kinds of lines that clients can cause. The service has its own kinds for calls (rope_service.h).
enum class LogKind {
  kConnection,  // a client connects
  kHello,       // a hello is refused, or served in part
  kRing,        // a client breaks a rule of the ring
  kRegion,      // a system error about a client's memory
  kProtobuf,    // a Protobuf error about a client's bytes
  kGrpc,        // a gRPC error about a client's connection
  kDevice,      // the accelerator refuses a batch
  kMethod,      // a client calls a method that no service has
};
inline constexpr int kLogKindCount = 8;

// LogLimiter::Admit on the process's limiter.
std::optional<int64_t> AdmitLine(LogKind kind);

// Calls spdlog::log if the kind's limit admits the line.
template <typename... Args>
void LogLimited(LogKind kind, spdlog::level::level_enum level,
                spdlog::format_string_t<Args...> format, Args&&... args) {
  if (!spdlog::should_log(level)) return;
  const std::optional<int64_t> left_out = AdmitLine(kind);
  if (!left_out.has_value()) return;
  spdlog::log(level, "{}{}", spdlog::fmt_lib::format(format, std::forward<Args>(args)...),
              LeftOut(*left_out));
}

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_LOG_LINE_H_
