// Histograms of the metrics page.
#ifndef ROPE_SERVER_TELEMETRY_HISTOGRAM_H_
#define ROPE_SERVER_TELEMETRY_HISTOGRAM_H_

#include <prometheus/client_metric.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace rope::server {

// Upper bounds of durations: 1, 2.5 and 5 of each power of ten from a microsecond to ten seconds,
// in nanoseconds.
inline constexpr int64_t kDurationBounds[] = {
    1'000,         2'500,         5'000,         10'000,        25'000,      50'000,
    100'000,       250'000,       500'000,       1'000'000,     2'500'000,   5'000'000,
    10'000'000,    25'000'000,    50'000'000,    100'000'000,   250'000'000, 500'000'000,
    1'000'000'000, 2'500'000'000, 5'000'000'000, 10'000'000'000};

// Upper bounds of buckets, and the search for the bucket of a value: from the first bound that a
// number of as many bits can need, which leaves a few.
//
// Threading:  Immutable.
// Ownership:  `bounds` must outlive it.
class BucketBounds {
 public:
  // REQUIRES: `bounds` ascends from 0 or more, and has less than 256 values.
  constexpr explicit BucketBounds(absl::Span<const int64_t> bounds) : bounds_(bounds) {
    for (size_t bits = 0; bits < first_.size(); ++bits) {
      const int64_t least = bits == 0 ? 0 : int64_t{1} << (bits - 1);
      first_[bits] = static_cast<uint8_t>(std::ranges::lower_bound(bounds, least) - bounds.begin());
    }
  }

  absl::Span<const int64_t> bounds() const { return bounds_; }
  // The index of the smallest bound >= `value`. REQUIRES: `value` >= 0.
  size_t Find(int64_t value) const {
    size_t i = first_[static_cast<size_t>(std::bit_width(static_cast<uint64_t>(value)))];
    while (i < bounds_.size() && bounds_[i] < value) ++i;
    return i;
  }

 private:
  const absl::Span<const int64_t> bounds_;
  std::array<uint8_t, 64> first_ = {};  // by the number of bits of a value
};

// Histogram: counts values by fixed upper bounds, for the request path. An observation is a short
// search and two relaxed atomic additions, without a lock.
//
// Threading:  Thread-safe. Reading may miss observations made at the same time. No observation is
//             lost.
// Ownership:  `buckets` must outlive the histogram.
// Limits:     The sum holds 2^63 - 1 units (292 years of nanoseconds).
class Histogram {
 public:
  // `per_unit` of the observed integers make one unit of the family (1e9 for nanoseconds shown as
  // seconds).
  Histogram(const BucketBounds& buckets, double per_unit)
      : buckets_(buckets), per_unit_(per_unit), counts_(buckets.bounds().size() + 1) {}

  // Counts `value` in the bucket of the smallest bound >= `value`. A negative value counts as 0.
  void Observe(int64_t value) {
    value = std::max<int64_t>(value, 0);
    counts_[buckets_.Find(value)].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
  }

  // The number of all observations.
  int64_t count() const;
  prometheus::ClientMetric Read(std::vector<prometheus::ClientMetric::Label> labels = {}) const;

 private:
  const BucketBounds& buckets_;
  const double per_unit_;
  std::vector<std::atomic<int64_t>> counts_;  // by bucket; never resized
  std::atomic<int64_t> sum_ = 0;
};

// Observes nanoseconds, shown as seconds.
class DurationHistogram final : public Histogram {
 public:
  DurationHistogram();
};

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_HISTOGRAM_H_
