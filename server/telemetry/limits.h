// Bounds of the log, of the metrics page and of traces.
#ifndef ROPE_SERVER_TELEMETRY_LIMITS_H_
#define ROPE_SERVER_TELEMETRY_LIMITS_H_

#include <cstdint>

namespace rope::server::limits {

// Lines of one kind (such as a method and code) that clients cause, of about 200 bytes each.
inline constexpr int64_t kLogLinesPerSecond = 20;
inline constexpr int64_t kLogBurstLines = 20;  // one second of lines
// Lines that wait for the output: one second of fifty kinds at their limit, about half a MiB.
inline constexpr int64_t kLogQueueLines = 1024;
// How long a line waits for room in the output. A running reader empties a pipe within that time.
inline constexpr int64_t kLogPatienceMs = 100;
// How long the process waits for its log at exit.
inline constexpr int64_t kLogEndMs = 1000;
// Names of models that clients chose and that the metrics page shows, with at most 36 series each.
inline constexpr int64_t kCountedModels = 64;
// Connections that are read at the same time, by one thread each. A connection whose request is not
// complete holds its thread for kMetricsRequestMs. A scrape waits while all threads are held.
inline constexpr int64_t kMetricsThreads = 16;
inline constexpr int64_t kMetricsRequestMs = 1000;  // enough to resend a lost packet
// Spans that wait for their exporter, of about 250 bytes each; it holds as many that it has taken.
inline constexpr int64_t kTraceQueueSpans = 2048;
inline constexpr int64_t kTraceTextBytes = 128;  // of each text that a client chose
// Spans of one post to the collector: about 0.8 MB with their stages.
inline constexpr int64_t kTraceBatchSpans = 512;
inline constexpr int64_t kTracePeriodMs = 5000;  // how long a span waits for others of its batch
// Between two batches, so that callers who have every call traced take a part of one processor:
// less than 2048 spans a second.
inline constexpr int64_t kTracePauseMs = 250;
inline constexpr int64_t kTraceAnswerMs = 10'000;  // the default of OTLP
inline constexpr int kTraceAttempts = 4;           // of a batch
inline constexpr int64_t kTraceBackoffMs = 1000;   // after the first attempt; doubles
// How long the process waits for the collector at exit.
inline constexpr int64_t kTraceEndMs = 1000;

}  // namespace rope::server::limits

#endif  // ROPE_SERVER_TELEMETRY_LIMITS_H_
