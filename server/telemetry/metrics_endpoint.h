// MetricsEndpoint: serves HTTP while it exists.
//
//   GET /                   the status page, for people
//   GET /metrics            the metrics, in the text format of Prometheus
//   GET /livez              200 ALIVE: the process runs
//   GET /readyz, /healthz   200 SERVING, or 503 NOT_SERVING: gRPC health of the whole server
//
// Threading:  The HTTP library's threads read the sources: `metrics` one at a time, `serving` at
//             any time.
// Ownership:  Everything that Sources refers to must outlive the endpoint.
// Errors:     UNAVAILABLE: the server cannot listen on the address. To clients: 404 for any other
//             path.
// Limits:     There are 16 threads. A connection occupies one from its first byte to its answer, or
//             for a second with half a request. A request waits for a free thread.
#ifndef ROPE_SERVER_TELEMETRY_METRICS_ENDPOINT_H_
#define ROPE_SERVER_TELEMETRY_METRICS_ENDPOINT_H_

#include <prometheus/metric_family.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/mutex.h"

struct mg_connection;
struct mg_context;

namespace rope::server {

// status_page.html, which CMake turns into a source.
std::string_view StatusPage();

class MetricsEndpoint {
 public:
  struct Sources {
    std::function<std::vector<prometheus::MetricFamily>()> metrics;
    std::function<bool()> serving;
  };

  // Listens on HOST:PORT. With port 0 the system picks one.
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Listen(const std::string& address,
                                                                 Sources sources);
  ~MetricsEndpoint();

  int port() const;

 private:
  struct Answer {
    int status = 0;  // of HTTP
    std::string body;
    const char* type = "text/plain; charset=utf-8";
  };

  MetricsEndpoint(std::string host, Sources sources, mg_context* library)
      : host_(std::move(host)), sources_(std::move(sources)), library_(library) {}

  static int Respond(mg_connection* connection, void* self);
  // nullopt: the endpoint has no such path.
  std::optional<Answer> AnswerTo(std::string_view path) const;

  const std::string host_;
  const Sources sources_;
  mutable proto::Mutex mutex_;  // held while the metrics are read, so that scrapes take turns
  mg_context* const library_;   // its threads
};

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_METRICS_ENDPOINT_H_
