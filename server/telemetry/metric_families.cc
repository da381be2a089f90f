#include "server/telemetry/metric_families.h"

#include <limits>
#include <utility>

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

}  // namespace rope::server
