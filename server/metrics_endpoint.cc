#include "server/metrics_endpoint.h"

#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include <exception>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/metric_families.h"
#include "server/process_statistics.h"

namespace rope::server {
namespace {

// Under the names that Prometheus uses for every program.
void CollectProcess(std::vector<prometheus::MetricFamily>& families) {
  const std::optional<ProcessStatistics> process = ReadProcessStatistics();
  if (!process.has_value()) return;
  families.push_back(MakeGauge("process_resident_memory_bytes", "Resident memory, bytes",
                               static_cast<double>(process->resident_bytes)));
  families.push_back(MakeCounter("process_cpu_seconds_total",
                                 "Processor time of user and system, seconds",
                                 process->cpu_seconds));
  families.push_back(MakeGauge("process_open_fds", "Open file descriptors",
                               static_cast<double>(process->open_fds)));
  families.push_back(MakeGauge("process_start_time_seconds",
                               "When the process started, seconds since 1970",
                               process->start_time_seconds));
}

class Page final : public prometheus::Collectable {
 public:
  Page(const Metrics& metrics, std::function<Gauges()> gauges)
      : metrics_(metrics), gauges_(std::move(gauges)) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    std::vector<prometheus::MetricFamily> families = metrics_.Collect(gauges_());
    CollectProcess(families);
    return families;
  }

 private:
  const Metrics& metrics_;
  const std::function<Gauges()> gauges_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Listen(
    const std::string& address, const Metrics& metrics, std::function<Gauges()> gauges) {
  std::unique_ptr<MetricsEndpoint> endpoint(new MetricsEndpoint());  // owned by endpoint
  try {  // the library's only way to say that an address is taken
    endpoint->exposer_ = std::make_unique<prometheus::Exposer>(address, 1);
  } catch (const std::exception&) {
    return absl::UnavailableError(
        absl::StrCat("--metrics_listen: got ", address, ", want an address that is free"));
  }
  endpoint->page_ = std::make_shared<Page>(metrics, std::move(gauges));
  endpoint->exposer_->RegisterCollectable(endpoint->page_);
  return endpoint;
}

MetricsEndpoint::~MetricsEndpoint() = default;

int MetricsEndpoint::port() const {
  return exposer_->GetListeningPorts().front();
}

}  // namespace rope::server
