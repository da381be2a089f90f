#include "server/telemetry/metrics_endpoint.h"

#include <netdb.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>
#include <sys/socket.h>
#include <unistd.h>

#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "proto/mutex.h"
#include "server/limits.h"
#include "server/telemetry/metric_families.h"
#include "server/telemetry/process_statistics.h"

namespace rope::server {
namespace {

// The metrics about the process that Prometheus clients export by convention.
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

// Names and values of the HTTP library's options. A connection occupies a thread from its first
// byte to its answer; half a request occupies it until the timeout.
std::vector<std::string> HttpOptions(const std::string& address) {
  return {"listening_ports",    address,
          "num_threads",        absl::StrCat(limits::kMetricsThreads),
          "request_timeout_ms", absl::StrCat(limits::kMetricsRequestMs)};
}

// Connects to a listener on this machine and closes the connection.
void ConnectOnce(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return;
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd >= 0) {
    (void)connect(fd, found->ai_addr, found->ai_addrlen);
    close(fd);
  }
  freeaddrinfo(found);
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsEndpoint>> MetricsEndpoint::Listen(
    const std::string& address, const Metrics& metrics, std::function<Gauges()> gauges) {
  std::unique_ptr<MetricsEndpoint> endpoint(new MetricsEndpoint());  // owned by endpoint
  try {  // the library reports an address in use only by an exception
    endpoint->exposer_ = std::make_unique<prometheus::Exposer>(HttpOptions(address));
  } catch (const std::exception&) {
    // A library built without IPv6, as the distribution's is, accepts no IPv6 address.
    const char* want = address[0] == '[' ? "an IPv4 address, or a libcivetweb with IPv6"
                                         : "an address that is free";
    return absl::UnavailableError(absl::StrCat("--metrics_listen: got ", address, ", want ", want));
  }
  endpoint->host_ = address.substr(0, address.rfind(':'));
  endpoint->page_ = std::make_shared<Page>(metrics, std::move(gauges));
  endpoint->exposer_->RegisterCollectable(endpoint->page_);
  return endpoint;
}

MetricsEndpoint::~MetricsEndpoint() {
  if (exposer_ == nullptr) return;
  // The library's listener may sleep for two seconds before it notices the stop request. A new
  // connection wakes it.
  proto::Notification closed;
  std::thread waker([&closed, host = host_, port = port()] {
    while (!closed.WaitForNotificationWithTimeout(std::chrono::milliseconds(5)))
      ConnectOnce(host, port);
  });
  exposer_.reset();
  closed.Notify();
  waker.join();
}

int MetricsEndpoint::port() const {
  return exposer_->GetListeningPorts().front();
}

}  // namespace rope::server
