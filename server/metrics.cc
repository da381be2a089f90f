#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <exception>

#include "absl/strings/str_cat.h"

namespace rope::server {

Metrics::Metrics(const std::string& version, const std::string& device)
    : registry_(std::make_shared<prometheus::Registry>()) {
  prometheus::BuildGauge()
      .Name("rope_build_info")
      .Help("Always 1; the labels say what is running")
      .Register(*registry_)
      .Add({{"version", version}, {"device", device}})
      .Set(1);
  requests_ = &prometheus::BuildCounter()
                   .Name("rope_requests_total")
                   .Help("Calls answered, by method and gRPC status code")
                   .Register(*registry_);
}

Metrics::~Metrics() = default;

absl::StatusOr<int> Metrics::Listen(const std::string& address) {
  try {  // the library's only way to say that an address is taken
    exposer_ = std::make_unique<prometheus::Exposer>(address, 1);
  } catch (const std::exception&) {
    return absl::UnavailableError(
        absl::StrCat("--metrics_listen: got ", address, ", want an address that is free"));
  }
  exposer_->RegisterCollectable(registry_);
  return exposer_->GetListeningPorts().front();
}

void Metrics::CountRequest(absl::string_view method, absl::string_view code) {
  requests_->Add({{"method", std::string(method)}, {"code", std::string(code)}}).Increment();
}

}  // namespace rope::server
