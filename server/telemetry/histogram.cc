#include "server/telemetry/histogram.h"

#include <limits>
#include <utility>

#include "kernels/check.h"

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

ClientMetric Histogram::Read(std::vector<ClientMetric::Label> labels) const {
  return HistogramSum(*this).Read(buckets_.bounds(), std::move(labels));
}

HistogramSum::HistogramSum(const Histogram& first)
    : bounds_(first.buckets_.bounds()), per_unit_(first.per_unit_), counts_(first.counts_.size()) {
  Add(first);
}

void HistogramSum::Add(const Histogram& histogram) {
  ROPE_CHECK(histogram.buckets_.bounds() == bounds_);
  for (size_t i = 0; i < counts_.size(); ++i) {
    counts_[i] += histogram.counts_[i].load(std::memory_order_relaxed);
  }
  sum_ += histogram.sum();
}

// A bucket counts all values up to its bound, so that a bound that is not shown changes none.
ClientMetric HistogramSum::Read(absl::Span<const int64_t> shown,
                                std::vector<ClientMetric::Label> labels) const {
  ClientMetric metric;
  metric.label = std::move(labels);
  auto& buckets = metric.histogram.bucket;
  uint64_t count = 0;
  for (size_t i = 0; i < bounds_.size(); ++i) {
    count += static_cast<uint64_t>(counts_[i]);
    if (buckets.size() == shown.size() || shown[buckets.size()] != bounds_[i]) continue;
    buckets.push_back({count, static_cast<double>(bounds_[i]) / per_unit_});
  }
  ROPE_CHECK(buckets.size() == shown.size());
  count += static_cast<uint64_t>(counts_.back());
  buckets.push_back({count, std::numeric_limits<double>::infinity()});
  metric.histogram.sample_count = count;
  metric.histogram.sample_sum = static_cast<double>(sum_) / per_unit_;
  return metric;
}

}  // namespace rope::server
