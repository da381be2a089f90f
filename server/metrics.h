// Metrics: the server's Prometheus registry and the endpoint that serves it.
//
// Threading:  Thread-safe.
// Errors:     UNAVAILABLE: the address cannot be listened on.
#ifndef ROPE_SERVER_METRICS_H_
#define ROPE_SERVER_METRICS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace prometheus {
class Counter;
class Exposer;
class Registry;
template <typename T>
class Family;
}  // namespace prometheus

namespace rope::server {

class Metrics {
 public:
  // `version` and `device` go into rope_build_info.
  Metrics(const std::string& version, const std::string& device);
  ~Metrics();

  // Serves /metrics at HOST:PORT (port 0: any) until destroyed; returns the port.
  absl::StatusOr<int> Listen(const std::string& address);

  // Counts an answered call in rope_requests_total{method, code}.
  void CountRequest(absl::string_view method, absl::string_view code);

 private:
  std::shared_ptr<prometheus::Registry> registry_;
  prometheus::Family<prometheus::Counter>* requests_ = nullptr;  // owned by registry_
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_METRICS_H_
