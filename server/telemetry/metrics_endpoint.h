// MetricsEndpoint: serves /metrics over HTTP while it exists.
//
// Threading:  The HTTP library's threads read the metrics and call `gauges`, one at a time.
// Ownership:  `metrics` and everything that `gauges` reads must outlive the endpoint.
// Errors:     UNAVAILABLE: the server cannot listen on the address.
// Limits:     A connection that sends half a request occupies a thread for kMetricsRequestMs. While
//             kMetricsThreads are occupied, a scrape waits for a free thread.
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
  // Listens on HOST:PORT. With port 0 the system picks one.
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
