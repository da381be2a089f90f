#include "server/telemetry/histogram.h"

#include <limits>
#include <utility>

namespace rope::server {

using prometheus::ClientMetric;

namespace {

constexpr BucketBounds kDurationBuckets(kDurationBounds);

}  // namespace

DurationHistogram::DurationHistogram() : Histogram(kDurationBuckets, 1e9) {}

int64_t Histogram::count() const {
  int64_t count = 0;
  for (const std::atomic<int64_t>& bucket : counts_) {
    count += bucket.load(std::memory_order_relaxed);
  }
  return count;
}

// A bucket counts all values up to its bound.
ClientMetric Histogram::Read(std::vector<ClientMetric::Label> labels) const {
  ClientMetric metric;
  metric.label = std::move(labels);
  auto& buckets = metric.histogram.bucket;
  const absl::Span<const int64_t> bounds = buckets_.bounds();
  uint64_t count = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    count += static_cast<uint64_t>(counts_[i].load(std::memory_order_relaxed));
    buckets.push_back({count, i < bounds.size() ? static_cast<double>(bounds[i]) / per_unit_
                                                : std::numeric_limits<double>::infinity()});
  }
  metric.histogram.sample_count = count;
  metric.histogram.sample_sum =
      static_cast<double>(sum_.load(std::memory_order_relaxed)) / per_unit_;
  return metric;
}

}  // namespace rope::server
