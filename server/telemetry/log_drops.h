// How many lines of its log the process left out, by reason. A process has one log, and so one
// count.
//
// Threading:  Thread-safe.
#ifndef ROPE_SERVER_TELEMETRY_LOG_DROPS_H_
#define ROPE_SERVER_TELEMETRY_LOG_DROPS_H_

#include <array>
#include <cstdint>
#include <string_view>

namespace rope::server {

enum class LogDrop {
  kRateLimit,  // more lines of a kind than LogLimiter admits
  kQueue,      // more lines than wait for the output
  kOutput,     // the output took none
};
inline constexpr int kLogDropCount = 3;

// "rate_limit".
std::string_view Name(LogDrop reason);

void CountLogDrops(LogDrop reason, int64_t lines);

// Since the process began, by LogDrop.
std::array<int64_t, kLogDropCount> LogDrops();

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_LOG_DROPS_H_
