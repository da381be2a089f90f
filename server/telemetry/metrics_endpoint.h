// MetricsEndpoint: serves /metrics over HTTP, for as long as it lives.
//
// Threading:  Threads of its own read the metrics and call `gauges`, one at a time.
// Ownership:  `metrics` and what `gauges` looks at must outlive the endpoint.
// Errors:     UNAVAILABLE: the address cannot be listened on.
// Limits:     A connection that sends half a request holds a thread for kMetricsRequestMs; while
//             kMetricsThreads do, a scrape waits for its turn.
#ifndef ROPE_SERVER_TELEMETRY_METRICS_ENDPOINT_H_
#define ROPE_SERVER_TELEMETRY_METRICS_ENDPOINT_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/telemetry/metrics.h"

namespace prometheus {
class Collectable;
class Exposer;
}  // namespace prometheus

namespace rope::server {

class MetricsEndpoint {
 public:
  // Listens at HOST:PORT (port 0: any).
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Listen(const std::string& address,
                                                                 const Metrics& metrics,
                                                                 std::function<Gauges()> gauges);
  ~MetricsEndpoint();

  int port() const;

 private:
  MetricsEndpoint() = default;

  std::string host_;
  std::shared_ptr<prometheus::Collectable> page_;
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_METRICS_ENDPOINT_H_
