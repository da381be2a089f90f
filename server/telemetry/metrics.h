// What the server counts, and its Prometheus families.
#ifndef ROPE_SERVER_TELEMETRY_METRICS_H_
#define ROPE_SERVER_TELEMETRY_METRICS_H_

#include <prometheus/metric_family.h>

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/tables/table_cache.h"
#include "server/telemetry/counts.h"
#include "server/telemetry/log.h"

namespace rope::server {

// The reason why a batch took no more requests.
enum class ClosedBy {
  kDirect,    // the batch ran on the thread that received it
  kDrained,   // the queue had no request left that fitted
  kBytes,     // the cap in bytes
  kTokens,    // the cap in tokens
  kRequests,  // the cap in requests
  kRows,      // the cap in bytes of table rows to build
  kJobs,      // the cap in jobs
};
inline constexpr int kClosedByCount = 7;

// What the batcher reports about each batch that ran. `device` is a view into a request of the
// batch, valid only during the call that delivers the report.
struct BatchReport {
  ClosedBy closed_by = ClosedBy::kDirect;
  std::string_view device;  // of the batch's first request, as the executor set it
  int64_t requests = 0;     // a slice of a large request counts as one
  int64_t bytes = 0;        // of the inputs or the outputs, whichever is larger
  absl::Time started = {};
  absl::Time finished = {};
};

// The methods of rope.v1.RopeService.
enum class Method {
  kRotate,
  kRotateStream,
  kDescribe,
  kListModels,
  kRegisterRegion,
  kUnregisterRegion,
  kListRegions,
  kGetServerInfo,
  kGetTables,
  kPrepare,
  kListConnections,
  kFingerprint,
};
inline constexpr int kMethodCount = 12;

// "Rotate".
std::string_view Name(Method method);

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
  int64_t streams = 0;
  int64_t models = 0;
  int64_t regions = 0;
  int64_t rings = 0;
  bool draining = false;
  kernels::TableCache::Statistics table_cache;
  std::vector<BudgetUse> budgets;
  std::array<int64_t, kLogDropCount> log_drops = {};                     // by LogDrop
  std::vector<std::pair<std::string_view, int64_t>> connections_closed;  // by reason
  std::optional<absl::Time> certificate_expiry;  // of the server's; unset: no TLS
  int64_t tls_failures = 0;                      // changed files that could not be used
};

// Metrics: counts events on the request path and exports them as Prometheus families.
//
// Counting indexes arrays and adds with relaxed atomics: no lock, no allocation. Only the name of a
// model is looked up (RotationCounts). Values that change slowly or belong to other classes
// (Gauges) are read when the page is scraped.
//
// Threading:  Thread-safe.
// Ownership:  Copies its arguments.
class Metrics {
 public:
  // The first three are labels of rope_build_info. Batches name one of `devices`; any other name is
  // counted as "other". `models`: see RotationCounts.
  Metrics(const std::string& version, const std::string& revision,
          const std::vector<std::string>& devices, absl::Span<const std::string> models = {});

  // Counts a rotation that succeeded.
  void CountRotation(const StageTimes& stages, int64_t tokens, const RotationLabels& labels);
  void CountBatch(const BatchReport& report);
  // A call that its handler gets ends with its answer, or as a stream; the transport counts others.
  CallCounts& CallsOf(Method method) { return calls_[static_cast<size_t>(method)]; }
  // Calls of methods that no service of the server has.
  CallCounts& unknown_calls() { return unknown_calls_; }
  // Requests of streams and of rings, which are no calls.
  RequestCounts& stream_requests() { return stream_requests_; }
  RequestCounts& ring_requests() { return ring_requests_; }
  // Counts the loss of `device`. Other failed batches are not counted.
  void CountDeviceFault(std::string_view device) { Device(device).faults.Add(); }

  // All families, in the order of the request path.
  std::vector<prometheus::MetricFamily> Collect(const Gauges& gauges) const;

 private:
  using Families = std::vector<prometheus::MetricFamily>;

  struct PerDevice {
    explicit PerDevice(const std::string& device_name) : name(device_name) {}
    const std::string name;
    std::array<Count, kClosedByCount> batches;
    Count faults;
  };

  PerDevice& Device(std::string_view name);
  void CollectCalls(Families& families) const;
  void CollectRequests(Families& families) const;
  void CollectBatches(Families& families) const;

  const prometheus::MetricFamily build_info_;
  // One for each device, then one for "other"; never resized.
  std::deque<PerDevice> devices_;
  std::array<CallCounts, kMethodCount> calls_;  // by Method
  std::array<Histogram, 4> stages_;             // decode, validate, queue, execute
  CallCounts unknown_calls_;
  RequestCounts stream_requests_;
  RequestCounts ring_requests_;
  Count tokens_;
  RotationCounts rotations_;
  Histogram batch_requests_;
  Histogram batch_bytes_;
  Histogram batch_duration_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_METRICS_H_
