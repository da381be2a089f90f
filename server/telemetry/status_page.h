// The status page: what an operator asks first, for people.
//
//   Metrics::Collect, the process's families -> StatusPage -> one HTML page
//
// The page is whole: it loads no script, font or image, and its policy forbids the browser to. The
// browser asks for it again every five seconds. Counts are since the process started; Prometheus
// has rates.
//
// Threading:  A function without state.
// Errors:     None. What no family tells is left out.
// Limits:     A quantile is as exact as the bounds of its histogram.
#ifndef ROPE_SERVER_TELEMETRY_STATUS_PAGE_H_
#define ROPE_SERVER_TELEMETRY_STATUS_PAGE_H_

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace rope::server {

// What the metrics do not say.
struct StatusMoment {
  bool serving = false;  // gRPC health of the whole server
  absl::Time now = {};
};

// Every text of `families` is escaped.
std::string StatusPage(const std::vector<prometheus::MetricFamily>& families,
                       const StatusMoment& moment);

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_STATUS_PAGE_H_
