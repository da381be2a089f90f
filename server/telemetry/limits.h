// Bounds of the log and of the metrics page.
#ifndef ROPE_SERVER_TELEMETRY_LIMITS_H_
#define ROPE_SERVER_TELEMETRY_LIMITS_H_

#include <cstdint>

namespace rope::server::limits {

// Lines of one kind (such as a method and code) that clients cause, of about 200 bytes each.
inline constexpr int64_t kLogLinesPerSecond = 20;
inline constexpr int64_t kLogBurstLines = 20;  // one second of lines
// Lines that wait for the output: one second of fifty kinds at their limit, about half a MiB.
inline constexpr int64_t kLogQueueLines = 1024;
// How long the process waits for its log at exit.
inline constexpr int64_t kLogEndMs = 1000;
// Connections that are read at the same time, by one thread each. A connection whose request is not
// complete holds its thread for kMetricsRequestMs. A scrape waits while all threads are held.
inline constexpr int64_t kMetricsThreads = 16;
inline constexpr int64_t kMetricsRequestMs = 1000;  // enough to resend a lost packet

}  // namespace rope::server::limits

#endif  // ROPE_SERVER_TELEMETRY_LIMITS_H_
