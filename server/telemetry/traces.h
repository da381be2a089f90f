// Traces: which calls are traced, and the spans of these calls until they are exported
// (trace_exporter.h).
#ifndef ROPE_SERVER_TELEMETRY_TRACES_H_
#define ROPE_SERVER_TELEMETRY_TRACES_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/mutex.h"
#include "server/telemetry/limits.h"
#include "server/telemetry/metrics.h"

namespace rope::server {

// 16 bytes, the first one highest. Zero: none.
struct TraceId {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const TraceId&) const = default;
};

// The header traceparent of W3C trace context: a call's trace, its span, and whether the caller
// records the trace.
struct TraceParent {
  TraceId trace;
  uint64_t span = 0;
  bool sampled = false;
  bool operator==(const TraceParent&) const = default;
};

// nullopt: no header, or one that W3C declares invalid. Of a version above 00 the fields of 00 are
// read; what follows them after a dash is ignored.
std::optional<TraceParent> ParseTraceParent(absl::string_view header);
// 32 and 16 lowercase digits.
std::string ToHex(const TraceId& id);
std::string ToHex(uint64_t span);

struct SpanIds {
  TraceId trace;
  uint64_t span = 0;
  uint64_t parent = 0;  // the caller's span; 0: the trace begins here
};

// One answered call, or one answered request of a stream.
struct TraceSpan {
  SpanIds ids;
  Method method = Method::kRotate;
  absl::StatusCode code = absl::StatusCode::kOk;
  absl::Time start = {};  // of day
  absl::Time end = {};
  // A rotation that succeeded. Its stages become child spans, one after the other from the start.
  std::optional<RotationReport> rotation = std::nullopt;
  // Attributes; empty: left out.
  std::string request_id = {};
  std::string model = {};
  std::string device = {};
  std::string peer = {};
};

// 64 random bits. Thread-safe.
uint64_t RandomBits();

// Tracer: decides which calls are traced, and holds their spans until an exporter takes them.
//
//   - A caller with a traceparent decides for its calls: those with the flag `sampled` are traced.
//   - Of the other calls a part is traced, by the trace id: its last 7 bytes are random and must
//     reach a threshold, as in OpenTelemetry's consistent sampling.
//
// Add takes one lock, moves the span into memory that the tracer has, and wakes the exporter once
// for each batch. When the queue is full, the new span is dropped and counted.
//
// Threading:  Thread-safe. One thread takes spans.
// Limits:     Options::queue_spans wait, and the taker holds as many. Texts are cut to
//             limits::kTraceTextBytes.
class Tracer {
 public:
  struct Options {
    double ratio = 0;  // of the calls without a traceparent: 0 to 1
    size_t queue_spans = limits::kTraceQueueSpans;
    size_t batch_spans = limits::kTraceBatchSpans;  // as many wake the taker
    std::function<uint64_t()> random = &RandomBits;
  };
  // Of spans; the stages of a call do not count. All since the process started.
  struct Counters {
    std::atomic<int64_t> exported = 0;
    std::atomic<int64_t> dropped_queue = 0;      // the queue was full
    std::atomic<int64_t> dropped_collector = 0;  // the collector did not take their batch
    std::atomic<int64_t> failed_posts = 0;       // attempts, each with a batch
  };

  explicit Tracer(Options options);

  // The ids of a call's span; nullopt: the call is not traced. `traceparent`: empty if the call has
  // none.
  std::optional<SpanIds> Sample(absl::string_view traceparent) const;
  void Add(TraceSpan span);
  Counters& counters() { return counters_; }

  // For the exporter. Puts the waiting spans into `spans`, in their order. Returns when a batch is
  // there, when `period` has passed, or after Close; false: closed, and no span is left.
  bool Take(std::chrono::nanoseconds period, std::vector<TraceSpan>& spans);
  // True: Close was called, before or within `timeout`.
  bool AwaitClose(std::chrono::nanoseconds timeout);
  // From now on Take does not wait, and new spans are dropped.
  void Close();

 private:
  using Instant = std::chrono::steady_clock::time_point;
  // False: `end` has passed.
  bool WaitUntil(Instant end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  const uint64_t threshold_;  // of the last 7 bytes of a trace id; 2^56: none reaches it
  Counters counters_;
  proto::Mutex mutex_;
  proto::CondVar changed_;  // a batch is there, or closed
  std::vector<TraceSpan> waiting_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_TRACES_H_
