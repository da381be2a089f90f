// Builds Prometheus metric families: counters, gauges and histograms.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_TELEMETRY_METRIC_FAMILIES_H_
#define ROPE_SERVER_TELEMETRY_METRIC_FAMILIES_H_

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "server/telemetry/histogram.h"

namespace rope::server {

using MetricLabels = std::vector<prometheus::ClientMetric::Label>;

// A family without values.
prometheus::MetricFamily MakeFamily(const std::string& name, const std::string& help,
                                    prometheus::MetricType type);

// A family of one value without labels.
prometheus::MetricFamily MakeCounter(const std::string& name, const std::string& help,
                                     double value);
prometheus::MetricFamily MakeGauge(const std::string& name, const std::string& help, double value);

// Adds a value to a family of counters or gauges.
void AddValue(prometheus::MetricFamily& family, MetricLabels labels, double value);

// Adds a histogram. `per_unit` of its integers make one unit of the family (1e9 for nanoseconds
// shown as seconds).
void AddHistogram(prometheus::MetricFamily& family, MetricLabels labels, const Histogram& histogram,
                  double per_unit);

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_METRIC_FAMILIES_H_
