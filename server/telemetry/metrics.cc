#include "server/telemetry/metrics.h"

#include <optional>

#include "absl/strings/str_join.h"
#include "server/telemetry/process.h"

namespace rope::server {

namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Families = std::vector<MetricFamily>;

constexpr int64_t kBatchRequestsBounds[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};
constexpr BucketBounds kBatchRequestsBuckets(kBatchRequestsBounds);
// Fourfold from 1 KiB to 64 MiB.
constexpr int64_t kBatchBytesBounds[] = {1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18,
                                         1 << 20, 1 << 22, 1 << 24, 1 << 26};
constexpr BucketBounds kBatchBytesBuckets(kBatchBytesBounds);

constexpr std::string_view kMethodNames[kMethodCount] = {
    "Rotate",         "RotateStream",     "Describe",        "ListModels",
    "RegisterRegion", "UnregisterRegion", "ListRegions",     "GetServerInfo",
    "GetTables",      "Prepare",          "ListConnections", "Fingerprint"};
constexpr const char* kStageNames[] = {"decode", "validate", "queue", "execute"};
constexpr const char* kClosedByNames[kClosedByCount] = {"direct",   "drained", "bytes", "tokens",
                                                        "requests", "rows",    "jobs"};
constexpr const char* kDropNames[kLogDropCount] = {"rate_limit", "output"};

// Rounded. REQUIRES: not negative.
int64_t Nanoseconds(double microseconds) {
  return static_cast<int64_t>(microseconds * 1e3 + 0.5);
}

std::string CodeName(size_t code) {
  return absl::StatusCodeToString(static_cast<absl::StatusCode>(code));
}

// One value of a counter or a gauge; the page shows the field of its family's type.
template <typename Number>
ClientMetric ValueOf(const Number& number, std::vector<ClientMetric::Label> labels = {}) {
  ClientMetric metric;
  metric.label = std::move(labels);
  metric.counter.value = metric.gauge.value = static_cast<double>(number);
  return metric;
}

template <typename Number>
void AddCounter(Families& families, const char* name, const char* help, const Number& number) {
  families.push_back({name, help, MetricType::Counter, {ValueOf(number)}});
}

template <typename Number>
void AddGauge(Families& families, const char* name, const char* help, const Number& number) {
  families.push_back({name, help, MetricType::Gauge, {ValueOf(number)}});
}

void AddHistogram(Families& families, const char* name, const char* help,
                  const Histogram& histogram) {
  families.push_back({name, help, MetricType::Histogram, {histogram.Read()}});
}

void CollectTableCache(const Gauges& gauges, Families& families) {
  const kernels::TableCache::Statistics& cache = gauges.table_cache;
  AddCounter(families, "rope_table_cache_hits_total", "Table pages that were looked up and found",
             cache.hits);
  AddCounter(families, "rope_table_cache_misses_total",
             "Table pages that were looked up and not found", cache.misses);
  AddCounter(families, "rope_table_cache_builds_total", "Table pages built", cache.builds);
  AddCounter(families, "rope_table_cache_evictions_total",
             "Table pages dropped to stay within the budget", cache.evictions);
  AddGauge(families, "rope_table_cache_pages", "Table pages held", cache.pages);
  AddGauge(families, "rope_table_cache_tables", "Embeddings with at least one table page held",
           cache.tables);
}

void CollectBudgets(const Gauges& gauges, Families& families) {
  std::vector<ClientMetric> limits;
  std::vector<ClientMetric> used;
  std::vector<ClientMetric> refusals;
  for (const BudgetUse& budget : gauges.budgets) {
    const ClientMetric::Label name = {"budget", std::string(budget.name)};
    limits.push_back(ValueOf(budget.limit, {name}));
    used.push_back(ValueOf(budget.used, {name}));
    for (const BudgetUse::Refusal& refusal : budget.refusals) {
      refusals.push_back(ValueOf(refusal.count, {name, {"reason", std::string(refusal.reason)}}));
    }
  }
  families.push_back({"rope_budget_limit",
                      "Limit of each budget; in bytes if its name ends in _bytes",
                      MetricType::Gauge, std::move(limits)});
  families.push_back(
      {"rope_budget_used", "Use of each budget", MetricType::Gauge, std::move(used)});
  families.push_back({"rope_budget_refusals_total", "Refusals for lack of budget, by reason",
                      MetricType::Counter, std::move(refusals)});
}

void CollectConnections(const Gauges& gauges, Families& families) {
  std::vector<ClientMetric> closed;
  for (const auto& [reason, count] : gauges.connections_closed) {
    closed.push_back(ValueOf(count, {{"reason", std::string(reason)}}));
  }
  families.push_back({"rope_connections_closed_total",
                      "Connections that the server closed, by reason", MetricType::Counter,
                      std::move(closed)});
  if (!gauges.certificate_expiry.has_value()) return;
  AddGauge(families, "rope_tls_certificate_expiry_timestamp_seconds",
           "When the server's certificate ends, in seconds since 1970",
           absl::ToDoubleSeconds(*gauges.certificate_expiry - absl::UnixEpoch()));
  AddCounter(families, "rope_tls_reload_failures_total",
             "Changed TLS files that could not be used; those before stay", gauges.tls_failures);
}

void CollectLogDrops(const Gauges& gauges, Families& families) {
  std::vector<ClientMetric> drops;
  for (size_t i = 0; i < gauges.log_drops.size(); ++i) {
    drops.push_back(ValueOf(gauges.log_drops[i], {{"reason", kDropNames[i]}}));
  }
  families.push_back(
      {"rope_log_lines_dropped_total",
       "Log lines dropped, by reason: rate_limit (of their kind), output (not accepted in time)",
       MetricType::Counter, std::move(drops)});
}

// The metrics about the process that Prometheus clients export by convention.
void CollectProcess(Families& families) {
  const std::optional<ProcessStatistics> process = ReadProcessStatistics();
  if (!process.has_value()) return;
  AddGauge(families, "process_resident_memory_bytes", "Resident memory, bytes",
           process->resident_bytes);
  AddCounter(families, "process_cpu_seconds_total", "Processor time of user and system, seconds",
             process->cpu_seconds);
  AddGauge(families, "process_open_fds", "Open file descriptors", process->open_fds);
  AddGauge(families, "process_start_time_seconds", "When the process started, seconds since 1970",
           process->start_time_seconds);
}

MetricFamily BuildInfo(const std::string& version, const std::string& revision,
                       const std::vector<std::string>& devices) {
  return {"rope_build_info",
          "Always 1; the labels say what is running",
          MetricType::Gauge,
          {ValueOf(1, {{"version", version},
                       {"revision", revision},
                       {"device", absl::StrJoin(devices, ",")}})}};
}

}  // namespace

std::string_view Name(Method method) {
  return kMethodNames[static_cast<size_t>(method)];
}

Metrics::Metrics(const std::string& version, const std::string& revision,
                 const std::vector<std::string>& devices, absl::Span<const std::string> models)
    : build_info_(BuildInfo(version, revision, devices)),
      rotations_(models),
      batch_requests_(kBatchRequestsBuckets, 1),
      batch_bytes_(kBatchBytesBuckets, 1) {
  for (const std::string& device : devices) devices_.emplace_back(device);
  devices_.emplace_back("other");
}

void Metrics::CountRotation(const StageTimes& stages, int64_t tokens,
                            const RotationLabels& labels) {
  rotations_.Count(labels);
  stages_[0].Observe(Nanoseconds(stages.decode));
  stages_[1].Observe(Nanoseconds(stages.validate));
  stages_[2].Observe(Nanoseconds(stages.queue));
  stages_[3].Observe(Nanoseconds(stages.execute));
  tokens_.Add(tokens);
}

void Metrics::CountBatch(const BatchReport& report) {
  Device(report.device).batches[static_cast<size_t>(report.closed_by)].Add();
  batch_requests_.Observe(report.requests);
  batch_bytes_.Observe(report.bytes);
  batch_duration_.Observe(absl::ToInt64Nanoseconds(report.finished - report.started));
}

Metrics::PerDevice& Metrics::Device(std::string_view name) {
  for (PerDevice& device : devices_) {
    if (device.name == name) return device;
  }
  return devices_.back();
}

Families Metrics::Collect(const Gauges& gauges) const {
  Families families = {build_info_};
  AddGauge(families, "rope_draining",
           "1 while the server refuses new work and finishes what it has, else 0", gauges.draining);
  CollectCalls(families);
  CollectRequests(families);
  AddGauge(families, "rope_requests_in_flight", "Rotate requests admitted and not yet answered",
           gauges.requests_in_flight);
  AddGauge(families, "rope_streams", "Open RotateStream calls", gauges.streams);
  CollectBatches(families);
  CollectTableCache(gauges, families);
  AddGauge(families, "rope_models", "Models that requests can name", gauges.models);
  AddGauge(families, "rope_regions", "Memory regions that are registered", gauges.regions);
  AddGauge(families, "rope_rings", "Connections with a ring", gauges.rings);
  CollectBudgets(gauges, families);
  CollectConnections(gauges, families);
  CollectLogDrops(gauges, families);
  CollectProcess(families);
  return families;
}

// gRPC's instruments (gRFC A66), with the names that OpenTelemetry's exporter for Prometheus makes:
// dots are underscores, the unit follows, and _total ends a counter.
void Metrics::CollectCalls(Families& families) const {
  MetricFamily started = {
      "grpc_server_call_started_total", "gRPC calls begun, by method", MetricType::Counter, {}};
  MetricFamily duration = {"grpc_server_call_duration_seconds",
                           "Seconds from a gRPC call's message to its answer, of a stream from its "
                           "headers to its end; 0 if no message came",
                           MetricType::Histogram,
                           {}};
  MetricFamily received = {"grpc_server_call_rcvd_total_compressed_message_size_bytes",
                           "Bytes of the request messages of a gRPC call, which are not compressed",
                           MetricType::Histogram,
                           {}};
  MetricFamily sent = {"grpc_server_call_sent_total_compressed_message_size_bytes",
                       "Bytes of the answer messages of a gRPC call, which are not compressed",
                       MetricType::Histogram,
                       {}};
  // `always`: also if there was none.
  const auto add = [&](const std::string& method, const CallCounts& calls, bool always) {
    if (always || calls.started() > 0) {
      started.metric.push_back(ValueOf(calls.started(), {{"grpc_method", method}}));
    }
    for (size_t code = 0; code < kCodeCount; ++code) {
      const CallCounts::Counts& counts = calls.counts()[code];
      if (counts.duration.count() == 0 && !(always && code == 0)) continue;
      const std::vector<ClientMetric::Label> labels = {{"grpc_method", method},
                                                       {"grpc_status", CodeName(code)}};
      duration.metric.push_back(counts.duration.Read(labels));
      received.metric.push_back(counts.received_bytes.Read(labels));
      sent.metric.push_back(counts.sent_bytes.Read(labels));
    }
  };
  for (size_t i = 0; i < calls_.size(); ++i) {
    add("rope.v1.RopeService/" + std::string(kMethodNames[i]), calls_[i],
        i == static_cast<size_t>(Method::kRotate));
  }
  add("other", unknown_calls_, /*always=*/false);
  for (MetricFamily* const family : {&started, &duration, &received, &sent}) {
    families.push_back(std::move(*family));
  }
}

void Metrics::CollectRequests(Families& families) const {
  std::vector<ClientMetric> answers;
  std::vector<ClientMetric> durations;
  for (const auto& [requests, transport] :
       {std::pair(&stream_requests_, "stream"), std::pair(&ring_requests_, "ring")}) {
    for (size_t code = 0; code < kCodeCount; ++code) {
      const int64_t count = requests->answers()[code];
      if (count == 0 && code != 0) continue;
      answers.push_back(ValueOf(count, {{"code", CodeName(code)}, {"transport", transport}}));
    }
    durations.push_back(requests->duration().Read({{"transport", transport}}));
  }
  std::vector<ClientMetric> stages;
  for (size_t i = 0; i < stages_.size(); ++i) {
    stages.push_back(stages_[i].Read({{"stage", kStageNames[i]}}));
  }
  families.push_back({"rope_pipelined_requests_total",
                      "Requests that came in a stream or through a ring, which are no gRPC calls, "
                      "by transport and gRPC status code",
                      MetricType::Counter, std::move(answers)});
  families.push_back({"rope_pipelined_request_duration_seconds",
                      "Seconds from the arrival of a request of a stream or ring to its answer, by "
                      "transport",
                      MetricType::Histogram, std::move(durations)});
  families.push_back({"rope_request_stage_seconds",
                      "Seconds that successful Rotate requests spent in each stage of the server",
                      MetricType::Histogram, std::move(stages)});
  AddCounter(families, "rope_tokens_total", "Tokens of successful Rotate requests", tokens_);
  families.push_back({"rope_rotations_total",
                      "Rotations that succeeded, by how their tensors came, operation and model",
                      MetricType::Counter, rotations_.Read()});
}

void Metrics::CollectBatches(Families& families) const {
  std::vector<ClientMetric> batches;
  std::vector<ClientMetric> faults;
  for (const PerDevice& device : devices_) {
    const bool used = device.faults != 0 ||
                      std::ranges::any_of(device.batches, [](const Count& n) { return n != 0; });
    if (&device == &devices_.back() && !used) continue;
    for (size_t i = 0; i < device.batches.size(); ++i) {
      batches.push_back(
          ValueOf(device.batches[i], {{"closed_by", kClosedByNames[i]}, {"device", device.name}}));
    }
    faults.push_back(ValueOf(device.faults, {{"device", device.name}}));
  }
  families.push_back(
      {"rope_batches_total",
       "Batches run, by device and by the reason they closed: direct (on the thread that received "
       "it), drained (nothing was left), bytes, tokens, requests, rows, jobs (a cap)",
       MetricType::Counter, std::move(batches)});
  families.push_back({"rope_device_faults_total", "Batches that failed on a device",
                      MetricType::Counter, std::move(faults)});
  AddHistogram(families, "rope_batch_requests",
               "Requests in a batch; a slice of a large request counts as one", batch_requests_);
  AddHistogram(families, "rope_batch_bytes",
               "Bytes of tensors in a batch, input or output, whichever is larger", batch_bytes_);
  AddHistogram(families, "rope_batch_duration_seconds", "Seconds that a batch ran",
               batch_duration_);
}

}  // namespace rope::server
