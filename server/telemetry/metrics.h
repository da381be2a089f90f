// Metrics: counts events on the request path and exports them as Prometheus families.
//
// Counting indexes arrays and adds with relaxed atomics: no lock, no look-up of labels, no
// allocation. Values that change slowly or belong to other classes (Gauges) are read when the page
// is scraped.
//
// Threading:  Thread-safe.
// Ownership:  Copies its arguments.
#ifndef ROPE_SERVER_TELEMETRY_METRICS_H_
#define ROPE_SERVER_TELEMETRY_METRICS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/tables/table_cache.h"
#include "server/telemetry/batch_report.h"
#include "server/telemetry/histogram.h"
#include "server/telemetry/log_drops.h"

namespace prometheus {
struct MetricFamily;
}

namespace rope::server {

// The methods of rope.v1.RopeService.
enum class Method {
  kRotate,
  kRotateStream,
  kDescribe,
  kListModels,
  kRegisterModel,
  kUnregisterModel,
  kRegisterRegion,
  kUnregisterRegion,
  kListRegions,
  kGetServerInfo,
  kWarmUp,
  kGetTables,
  kPrepare,
};
inline constexpr int kMethodCount = 13;

// "Rotate".
std::string_view Name(Method method);

// One answered call, or one answered request of a stream.
struct RequestReport {
  Method method = Method::kRotate;
  absl::StatusCode code = absl::StatusCode::kOk;
  absl::Duration duration = absl::ZeroDuration();  // from its arrival to its answer
  int64_t received_bytes = 0;                      // of its message
  int64_t sent_bytes = 0;                          // of the answer's message
};

// One rotation that succeeded.
struct RotationReport {
  double decode_us = 0;
  double validate_us = 0;
  double queue_us = 0;
  double execute_us = 0;
  int64_t tokens = 0;
};

// The limit and the use of one budget.
struct BudgetUse {
  struct Refusal {
    std::string_view reason;
    int64_t count = 0;  // since the process started
  };
  std::string_view name;  // ends in _bytes if the budget counts bytes
  int64_t limit = 0;
  int64_t used = 0;
  std::vector<Refusal> refusals = {};
};

// Values read at the moment of a scrape.
struct Gauges {
  int64_t requests_in_flight = 0;
  int64_t admitted_bytes = 0;
  int64_t streams = 0;
  int64_t models = 0;
  int64_t regions = 0;
  int64_t region_bytes = 0;
  int64_t regions_rejected = 0;
  int64_t rings = 0;
  bool draining = false;
  kernels::TableCache::Statistics table_cache;
  int64_t table_cache_budget_bytes = 0;
  std::vector<BudgetUse> budgets;
  std::array<int64_t, kLogDropCount> log_drops = {};  // by LogDrop
};

class Metrics {
 public:
  // All are labels of rope_build_info. Batches name one of `devices`; any other name is counted as
  // "other".
  Metrics(const std::string& version, const std::string& revision,
          const std::vector<std::string>& devices);
  ~Metrics();

  void CountRequest(const RequestReport& report);
  void CountRotation(const RotationReport& report);
  void CountBatch(const BatchReport& report);
  // Counts a call of a method that no service of the server has.
  void CountUnknownMethod();
  // Counts the loss of `device`. Other failed batches are not counted.
  void CountDeviceFault(std::string_view device);

  // All families, in the order of the request path.
  std::vector<prometheus::MetricFamily> Collect(const Gauges& gauges) const;

 private:
  using Counter = std::atomic<int64_t>;
  using Families = std::vector<prometheus::MetricFamily>;

  static constexpr size_t kCodeCount = 17;  // of absl::StatusCode
  struct PerMethod {
    PerMethod();
    std::array<Counter, kCodeCount> answers = {};
    Histogram duration;  // nanoseconds
  };
  struct PerDevice {
    explicit PerDevice(const std::string& device_name) : name(device_name) {}
    const std::string name;
    std::array<Counter, kClosedByCount> batches = {};
    Counter faults = 0;
  };

  PerDevice& Device(std::string_view name);
  void CollectRequests(Families& families) const;
  void CollectBatches(Families& families) const;

  const std::string version_;
  const std::string revision_;
  // One for each device, then one for "other"; never resized.
  std::deque<PerDevice> devices_;
  std::array<PerMethod, kMethodCount> methods_;
  std::array<Histogram, 4> stages_;  // decode, validate, queue, execute; nanoseconds
  Counter unknown_methods_ = 0;
  Counter received_bytes_ = 0;
  Counter sent_bytes_ = 0;
  Counter tokens_ = 0;
  Histogram batch_requests_;
  Histogram batch_bytes_;
  Histogram batch_duration_;  // nanoseconds
};

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_METRICS_H_
