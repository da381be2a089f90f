// Counts the log lines that the process dropped, by reason. A process has one log, hence one set of
// counters.
//
// Threading:  Thread-safe.
#ifndef ROPE_SERVER_TELEMETRY_LOG_DROPS_H_
#define ROPE_SERVER_TELEMETRY_LOG_DROPS_H_

#include <array>
#include <cstdint>
#include <string_view>

namespace rope::server {

enum class LogDrop {
  kRateLimit,  // LogLimiter rejected the line
  kQueue,      // the queue was full
  kOutput,     // the output did not accept the line in time
};
inline constexpr int kLogDropCount = 3;

// "rate_limit".
std::string_view Name(LogDrop reason);

void CountLogDrops(LogDrop reason, int64_t lines);

// The counts since the process started, indexed by LogDrop.
std::array<int64_t, kLogDropCount> LogDrops();

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_LOG_DROPS_H_
