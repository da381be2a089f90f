// How lines of the log are written: values of clients are quoted, and lines that a client can
// repeat are limited by their kind.
//
// Threading:  Thread-safe.
// Limits:     Of each kind, as many lines as LogLimiter admits.
#ifndef ROPE_SERVER_TELEMETRY_LOG_LINE_H_
#define ROPE_SERVER_TELEMETRY_LOG_LINE_H_

#include <spdlog/spdlog.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace rope::server {

// The text in double quotes, as one field of one line whatever it holds: quotes, backslashes,
// control and invisible characters and what is no UTF-8 become C escapes (\n or \x and two digits
// for each byte). Other characters stay as they are.
std::string Quoted(absl::string_view text);

// The end of a line before which `lines` of its kind were left out: " left_out=7", or nothing.
std::string LeftOut(int64_t lines);

// Lines of the process that clients can cause. Those of calls are the service's (rope_service.h).
enum class LogKind {
  kConnection,  // who connects
  kHello,       // a hello that is refused, or served in part
  kRing,        // a ring that breaks its rules
  kRegion,      // what the system says about a client's memory
  kProtobuf,    // what Protobuf says about a client's bytes
  kGrpc,        // what gRPC says about a client's connection
};
inline constexpr int kLogKindCount = 6;

// As LogLimiter::Admit, of a limiter that the process has.
std::optional<int64_t> AdmitLine(LogKind kind);

// As spdlog::log, where the kind's limit admits the line.
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
