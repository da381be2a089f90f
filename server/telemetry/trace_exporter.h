// TraceExporter: sends the spans of a Tracer to a collector while it exists, as OTLP over HTTP with
// bodies in JSON: POST /v1/traces.
//
//   - A batch is sent when it is full, or when its period has passed.
//   - A batch is tried again, later each time, if no answer comes or the answer is 429, 502, 503 or
//     504. After the last attempt, or another answer than 2xx, its spans are dropped and counted.
//     A batch whose answer is lost may arrive twice.
//   - The log has a line when batches begin to be dropped, and one when they are taken again.
//
// Threading:  A thread of its own, which inherits the signal mask of the thread that constructs the
//             exporter. Constructor and destructor run on one thread.
// Ownership:  Shares the tracer with its thread, and closes it in the end.
// Limits:     Plain HTTP to an IPv4 address, or to a name that has one: for a collector on this
//             host, in this pod or on a private network. Retry-After and what an answer says of
//             single spans are not read. The HTTP library takes at most 10 s to connect, and 30 s
//             for bytes that the collector does not read. The destructor sends what waits, each
//             batch once, and takes at most Options::end. A thread that has not ended by then is
//             abandoned until the process ends.
#ifndef ROPE_SERVER_TELEMETRY_TRACE_EXPORTER_H_
#define ROPE_SERVER_TELEMETRY_TRACE_EXPORTER_H_

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/telemetry/limits.h"
#include "server/telemetry/traces.h"

namespace rope::server {

struct TraceEndpoint {
  std::string host;
  int port = 0;
};

// Reads "http://HOST:PORT"; nullopt: it is none.
std::optional<TraceEndpoint> ParseTraceEndpoint(absl::string_view url);

// An ExportTraceServiceRequest in OTLP's JSON. `instance_id`: of this server.
std::string TracesJson(absl::Span<const TraceSpan> spans, absl::string_view instance_id);

class TraceExporter {
 public:
  struct Options {
    TraceEndpoint endpoint;
    std::string instance_id;
    size_t batch_spans = limits::kTraceBatchSpans;  // at most, of one post
    std::chrono::milliseconds period{limits::kTracePeriodMs};
    std::chrono::milliseconds pause{limits::kTracePauseMs};  // after each batch
    std::chrono::milliseconds answer{
        limits::kTraceAnswerMs};  // how long a post waits for its answer
    int attempts = limits::kTraceAttempts;
    std::chrono::milliseconds backoff{limits::kTraceBackoffMs};
    std::chrono::milliseconds end{limits::kTraceEndMs};
  };

  TraceExporter(std::shared_ptr<Tracer> tracer, Options options);
  ~TraceExporter();
  TraceExporter(const TraceExporter&) = delete;
  TraceExporter& operator=(const TraceExporter&) = delete;

 private:
  class Sender;  // what the thread uses

  const std::shared_ptr<Sender> sender_;
  std::thread thread_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_TRACE_EXPORTER_H_
