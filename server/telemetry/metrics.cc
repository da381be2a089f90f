#include "server/telemetry/metrics.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_join.h"

namespace rope::server {

prometheus::MetricFamily MakeFamily(const std::string& name, const std::string& help,
                                    prometheus::MetricType type) {
  prometheus::MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = type;
  return family;
}

prometheus::MetricFamily MakeCounter(const std::string& name, const std::string& help,
                                     double value) {
  prometheus::MetricFamily family = MakeFamily(name, help, prometheus::MetricType::Counter);
  AddValue(family, {}, value);
  return family;
}

prometheus::MetricFamily MakeGauge(const std::string& name, const std::string& help, double value) {
  prometheus::MetricFamily family = MakeFamily(name, help, prometheus::MetricType::Gauge);
  AddValue(family, {}, value);
  return family;
}

void AddValue(prometheus::MetricFamily& family, MetricLabels labels, double value) {
  prometheus::ClientMetric& metric = family.metric.emplace_back();
  metric.label = std::move(labels);
  if (family.type == prometheus::MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
}

void AddHistogram(prometheus::MetricFamily& family, MetricLabels labels, const Histogram& histogram,
                  double per_unit) {
  prometheus::ClientMetric& metric = family.metric.emplace_back();
  metric.label = std::move(labels);
  const Histogram::Snapshot snapshot = histogram.Read();
  for (size_t i = 0; i < snapshot.cumulative.size(); ++i) {
    prometheus::ClientMetric::Bucket& bucket = metric.histogram.bucket.emplace_back();
    bucket.cumulative_count = static_cast<uint64_t>(snapshot.cumulative[i]);
    bucket.upper_bound = i < histogram.bounds().size()
                             ? static_cast<double>(histogram.bounds()[i]) / per_unit
                             : std::numeric_limits<double>::infinity();
  }
  metric.histogram.sample_count = static_cast<uint64_t>(snapshot.cumulative.back());
  metric.histogram.sample_sum = static_cast<double>(snapshot.sum) / per_unit;
}

namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr double kNanosecondsPerSecond = 1e9;

// 1, 2.5 and 5 of each power of ten from a microsecond to ten seconds, in nanoseconds.
constexpr int64_t kDurationBounds[] = {
    1'000,         2'500,         5'000,         10'000,        25'000,      50'000,
    100'000,       250'000,       500'000,       1'000'000,     2'500'000,   5'000'000,
    10'000'000,    25'000'000,    50'000'000,    100'000'000,   250'000'000, 500'000'000,
    1'000'000'000, 2'500'000'000, 5'000'000'000, 10'000'000'000};
constexpr int64_t kBatchRequestsBounds[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};
// Fourfold from 1 KiB to 64 MiB.
constexpr int64_t kBatchBytesBounds[] = {1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18,
                                         1 << 20, 1 << 22, 1 << 24, 1 << 26};

constexpr std::string_view kMethodNames[kMethodCount] = {
    "Rotate",          "RotateStream",   "Describe",         "ListModels",  "RegisterModel",
    "UnregisterModel", "RegisterRegion", "UnregisterRegion", "ListRegions", "GetServerInfo",
    "WarmUp",          "GetTables",      "Prepare"};
constexpr const char* kStageNames[] = {"decode", "validate", "queue", "execute"};

void Add(std::atomic<int64_t>& counter, int64_t by = 1) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

double Read(const std::atomic<int64_t>& counter) {
  return static_cast<double>(counter.load(std::memory_order_relaxed));
}

int64_t Nanoseconds(double microseconds) {
  return std::llround(microseconds * 1e3);
}

std::string CodeName(size_t code) {
  return absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
}

void CollectTableCache(const Gauges& gauges, std::vector<MetricFamily>& families) {
  const kernels::TableCache::Statistics& cache = gauges.table_cache;
  const auto counter = [&families](const char* name, const char* help, int64_t value) {
    families.push_back(MakeCounter(name, help, static_cast<double>(value)));
  };
  const auto gauge = [&families](const char* name, const char* help, int64_t value) {
    families.push_back(MakeGauge(name, help, static_cast<double>(value)));
  };
  counter("rope_table_cache_hits_total", "Table pages that were looked up and found", cache.hits);
  counter("rope_table_cache_misses_total", "Table pages that were looked up and not found",
          cache.misses);
  counter("rope_table_cache_builds_total", "Table pages built", cache.builds);
  counter("rope_table_cache_evictions_total", "Table pages dropped to stay within the budget",
          cache.evictions);
  gauge("rope_table_cache_bytes", "Bytes of table pages and their bookkeeping held", cache.bytes);
  gauge("rope_table_cache_budget_bytes", "Bytes that the table cache may hold",
        gauges.table_cache_budget_bytes);
  gauge("rope_table_cache_pages", "Table pages held", cache.pages);
  gauge("rope_table_cache_tables", "Embeddings with at least one table page held", cache.tables);
}

void CollectBudgets(const Gauges& gauges, std::vector<MetricFamily>& families) {
  MetricFamily limits =
      MakeFamily("rope_budget_limit", "Limit of each budget; in bytes if its name ends in _bytes",
                 MetricType::Gauge);
  MetricFamily used = MakeFamily("rope_budget_used", "Use of each budget", MetricType::Gauge);
  MetricFamily refusals = MakeFamily("rope_budget_refusals_total",
                                     "Refusals for lack of budget, by reason", MetricType::Counter);
  for (const BudgetUse& budget : gauges.budgets) {
    const std::string name(budget.name);
    AddValue(limits, {{"budget", name}}, static_cast<double>(budget.limit));
    AddValue(used, {{"budget", name}}, static_cast<double>(budget.used));
    for (const BudgetUse::Refusal& refusal : budget.refusals) {
      AddValue(refusals, {{"budget", name}, {"reason", std::string(refusal.reason)}},
               static_cast<double>(refusal.count));
    }
  }
  families.push_back(std::move(limits));
  families.push_back(std::move(used));
  families.push_back(std::move(refusals));
}

void CollectLogDrops(const Gauges& gauges, std::vector<MetricFamily>& families) {
  families.push_back(MakeFamily(
      "rope_log_lines_dropped_total",
      "Log lines dropped, by reason: rate_limit (of their kind), queue (full), output (full)",
      MetricType::Counter));
  constexpr const char* kReasons[kLogDropCount] = {"rate_limit", "queue", "output"};
  for (size_t i = 0; i < gauges.log_drops.size(); ++i) {
    AddValue(families.back(), {{"reason", kReasons[i]}}, static_cast<double>(gauges.log_drops[i]));
  }
}

}  // namespace

std::string_view Name(Method method) {
  return kMethodNames[static_cast<size_t>(method)];
}

Metrics::PerMethod::PerMethod() : duration(kDurationBounds) {}

Metrics::Metrics(const std::string& version, const std::string& revision,
                 const std::vector<std::string>& devices)
    : version_(version),
      revision_(revision),
      stages_{Histogram(kDurationBounds), Histogram(kDurationBounds), Histogram(kDurationBounds),
              Histogram(kDurationBounds)},
      batch_requests_(kBatchRequestsBounds),
      batch_bytes_(kBatchBytesBounds),
      batch_duration_(kDurationBounds) {
  for (const std::string& device : devices) devices_.emplace_back(device);
  devices_.emplace_back("other");
}

Metrics::~Metrics() = default;

void Metrics::CountRequest(const RequestReport& report) {
  PerMethod& method = methods_[static_cast<size_t>(report.method)];
  const auto code = static_cast<size_t>(report.code);
  Add(method.answers[code < kCodeCount ? code : static_cast<size_t>(absl::StatusCode::kUnknown)]);
  method.duration.Observe(absl::ToInt64Nanoseconds(report.duration));
  Add(received_bytes_, report.received_bytes);
  Add(sent_bytes_, report.sent_bytes);
}

void Metrics::CountRotation(const RotationReport& report) {
  stages_[0].Observe(Nanoseconds(report.decode_us));
  stages_[1].Observe(Nanoseconds(report.validate_us));
  stages_[2].Observe(Nanoseconds(report.queue_us));
  stages_[3].Observe(Nanoseconds(report.execute_us));
  Add(tokens_, report.tokens);
}

void Metrics::CountBatch(const BatchReport& report) {
  Add(Device(report.device).batches[static_cast<size_t>(report.closed_by)]);
  batch_requests_.Observe(report.requests);
  batch_bytes_.Observe(report.bytes);
  batch_duration_.Observe(absl::ToInt64Nanoseconds(report.finished - report.started));
}

void Metrics::CountUnknownMethod() {
  Add(unknown_methods_);
}

void Metrics::CountDeviceFault(std::string_view device) {
  Add(Device(device).faults);
}

Metrics::PerDevice& Metrics::Device(std::string_view name) {
  for (PerDevice& device : devices_) {
    if (device.name == name) return device;
  }
  return devices_.back();
}

std::vector<MetricFamily> Metrics::Collect(const Gauges& gauges) const {
  Families families;
  families.push_back(
      MakeFamily("rope_build_info", "Always 1; the labels say what is running", MetricType::Gauge));
  std::vector<std::string> names;
  for (size_t i = 0; i + 1 < devices_.size(); ++i) names.push_back(devices_[i].name);
  AddValue(families.back(),
           {{"version", version_}, {"revision", revision_}, {"device", absl::StrJoin(names, ",")}},
           1);
  const auto gauge = [&families](const char* name, const char* help, double value) {
    families.push_back(MakeGauge(name, help, value));
  };
  gauge("rope_draining", "1 while the server refuses new work and finishes what it has, else 0",
        gauges.draining ? 1 : 0);
  CollectRequests(families);
  gauge("rope_requests_in_flight", "Rotate requests admitted and not yet answered",
        static_cast<double>(gauges.requests_in_flight));
  gauge("rope_admitted_bytes", "Bytes of input and output of the requests in flight",
        static_cast<double>(gauges.admitted_bytes));
  gauge("rope_streams", "Open RotateStream calls", static_cast<double>(gauges.streams));
  CollectBatches(families);
  CollectTableCache(gauges, families);
  gauge("rope_models", "Models that requests can name", static_cast<double>(gauges.models));
  gauge("rope_regions", "Memory regions that are registered", static_cast<double>(gauges.regions));
  gauge("rope_rings", "Connections with a ring", static_cast<double>(gauges.rings));
  gauge("rope_region_bytes",
        "Bytes of the files of memory regions, including unregistered ones in use",
        static_cast<double>(gauges.region_bytes));
  families.push_back(
      MakeCounter("rope_region_rejections_total",
                  "Refused registrations of memory regions, including those by hello",
                  static_cast<double>(gauges.regions_rejected)));
  CollectBudgets(gauges, families);
  CollectLogDrops(gauges, families);
  return families;
}

void Metrics::CollectRequests(Families& families) const {
  MetricFamily answers =
      MakeFamily("rope_requests_total", "Requests answered, by method and gRPC status code",
                 MetricType::Counter);
  MetricFamily durations = MakeFamily("rope_request_duration_seconds",
                                      "Seconds from a request's arrival to its answer, by method",
                                      MetricType::Histogram);
  for (size_t i = 0; i < methods_.size(); ++i) {
    const std::string method(kMethodNames[i]);
    bool used = i == static_cast<size_t>(Method::kRotate);  // exported from the start
    for (size_t code = 0; code < kCodeCount; ++code) {
      const double count = Read(methods_[i].answers[code]);
      if (count == 0 && !(used && code == 0)) continue;
      used = true;
      AddValue(answers, {{"code", CodeName(code)}, {"method", method}}, count);
    }
    if (!used) continue;
    AddHistogram(durations, {{"method", method}}, methods_[i].duration, kNanosecondsPerSecond);
  }
  MetricFamily stages =
      MakeFamily("rope_request_stage_seconds",
                 "Seconds that successful Rotate requests spent in each stage of the server",
                 MetricType::Histogram);
  for (size_t i = 0; i < stages_.size(); ++i) {
    AddHistogram(stages, {{"stage", kStageNames[i]}}, stages_[i], kNanosecondsPerSecond);
  }
  families.push_back(std::move(answers));
  families.push_back(std::move(durations));
  families.push_back(std::move(stages));
  families.push_back(MakeCounter("rope_unknown_methods_total",
                                 "Calls of methods that no service of the server has",
                                 Read(unknown_methods_)));
  families.push_back(MakeCounter("rope_received_bytes_total",
                                 "Bytes of request messages, without headers and framing",
                                 Read(received_bytes_)));
  families.push_back(MakeCounter("rope_sent_bytes_total",
                                 "Bytes of answer messages, without headers and framing",
                                 Read(sent_bytes_)));
  families.push_back(
      MakeCounter("rope_tokens_total", "Tokens of successful Rotate requests", Read(tokens_)));
}

void Metrics::CollectBatches(Families& families) const {
  MetricFamily batches = MakeFamily(
      "rope_batches_total",
      "Batches run, by device and by the reason they closed: direct (on the thread that received "
      "it), drained (nothing was left), bytes, tokens, requests, rows (a cap)",
      MetricType::Counter);
  MetricFamily faults = MakeFamily("rope_device_faults_total", "Batches that failed on a device",
                                   MetricType::Counter);
  for (const PerDevice& device : devices_) {
    double used = 0;
    for (const Counter& count : device.batches) used += Read(count);
    used += Read(device.faults);
    if (&device == &devices_.back() && used == 0) continue;
    for (int reason = 0; reason < kClosedByCount; ++reason) {
      AddValue(batches,
               {{"closed_by", std::string(Name(static_cast<ClosedBy>(reason)))},
                {"device", device.name}},
               Read(device.batches[static_cast<size_t>(reason)]));
    }
    AddValue(faults, {{"device", device.name}}, Read(device.faults));
  }
  families.push_back(std::move(batches));
  families.push_back(std::move(faults));
  families.push_back(MakeFamily("rope_batch_requests",
                                "Requests in a batch; a slice of a large request counts as one",
                                MetricType::Histogram));
  AddHistogram(families.back(), {}, batch_requests_, 1);
  families.push_back(MakeFamily("rope_batch_bytes",
                                "Bytes of tensors in a batch, input or output, whichever is larger",
                                MetricType::Histogram));
  AddHistogram(families.back(), {}, batch_bytes_, 1);
  families.push_back(
      MakeFamily("rope_batch_duration_seconds", "Seconds that a batch ran", MetricType::Histogram));
  AddHistogram(families.back(), {}, batch_duration_, kNanosecondsPerSecond);
}

}  // namespace rope::server
