// Metrics: counts what the request path does, and shows it as Prometheus families.
//
// Counting is an index into arrays and relaxed additions: no lock, no look-up of labels, nothing
// allocated. What changes slowly or is kept elsewhere (Gauges) is asked for when somebody reads.
//
// Threading:  Thread-safe.
// Ownership:  Copies what it is given.
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
  kGetTableCacheStatistics,
  kWarmUp,
};
inline constexpr int kMethodCount = 12;

// "Rotate".
std::string_view Name(Method method);

// One answered call, or one answered request of a stream.
struct RequestReport {
  Method method = Method::kRotate;
  absl::StatusCode code = absl::StatusCode::kOk;
  absl::Duration duration = absl::ZeroDuration();  // from its arrival to its answer
  int64_t received_bytes = 0;                      // of its message
  int64_t sent_bytes = 0;                          // of the answer's
};

// One rotation that succeeded.
struct RotationReport {
  double decode_us = 0;
  double validate_us = 0;
  double queue_us = 0;
  double execute_us = 0;
  int64_t tokens = 0;
};

// What the server may hold of something, and holds.
struct BudgetUse {
  struct Refusal {
    std::string_view reason;
    int64_t count = 0;  // since the start
  };
  std::string_view name;  // ends in _bytes where it counts bytes
  int64_t limit = 0;
  int64_t used = 0;
  std::vector<Refusal> refusals = {};
};

// What is true at the moment.
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
  // `version` and `devices` go into rope_build_info. DeviceRouter are those that batches will name.
  Metrics(const std::string& version, const std::vector<std::string>& devices);
  ~Metrics();

  void CountRequest(const RequestReport& report);
  void CountRotation(const RotationReport& report);
  void CountBatch(const BatchReport& report);
  // A backend has failed a batch.
  void CountDeviceFault(std::string_view device);

  // Every family once, in the order of the request path.
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
  // Of the devices, then of "other"; constant in number.
  std::deque<PerDevice> devices_;
  std::array<PerMethod, kMethodCount> methods_;
  std::array<Histogram, 4> stages_;  // decode, validate, queue, execute; nanoseconds
  Counter received_bytes_ = 0;
  Counter sent_bytes_ = 0;
  Counter tokens_ = 0;
  Histogram batch_requests_;
  Histogram batch_bytes_;
  Histogram batch_duration_;  // nanoseconds
};

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_METRICS_H_
