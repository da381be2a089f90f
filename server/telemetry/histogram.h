// Histogram: counts values by fixed upper bounds, for the request path. An observation is a binary
// search among at most kBoundsMax numbers and two relaxed atomic additions, without a lock.
//
// Threading:  Thread-safe. A snapshot may miss observations made at the same time. No observation
//             is lost.
// Ownership:  `bounds` must outlive the histogram.
// Limits:     At most kBoundsMax bounds. The sum holds 2^63 - 1 units (292 years of nanoseconds).
#ifndef ROPE_SERVER_TELEMETRY_HISTOGRAM_H_
#define ROPE_SERVER_TELEMETRY_HISTOGRAM_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/check.h"

namespace rope::server {

class Histogram {
 public:
  static constexpr size_t kBoundsMax = 24;

  // REQUIRES: `bounds` ascends.
  explicit Histogram(absl::Span<const int64_t> bounds) : bounds_(bounds) {
    ROPE_CHECK(bounds.size() <= kBoundsMax);
  }

  // Counts `value` in the bucket of the smallest bound >= `value`. A negative value counts as 0.
  void Observe(int64_t value) {
    value = std::max<int64_t>(value, 0);
    const auto bound = std::lower_bound(bounds_.begin(), bounds_.end(), value);
    counts_[static_cast<size_t>(bound - bounds_.begin())].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
  }

  struct Snapshot {
    std::vector<int64_t> cumulative;  // observations up to each bound, then all of them
    int64_t sum = 0;
  };
  Snapshot Read() const {
    Snapshot snapshot;
    int64_t count = 0;
    for (size_t i = 0; i <= bounds_.size(); ++i) {
      count += counts_[i].load(std::memory_order_relaxed);
      snapshot.cumulative.push_back(count);
    }
    snapshot.sum = sum_.load(std::memory_order_relaxed);
    return snapshot;
  }

  absl::Span<const int64_t> bounds() const { return bounds_; }

 private:
  const absl::Span<const int64_t> bounds_;
  std::array<std::atomic<int64_t>, kBoundsMax + 1> counts_ = {};
  std::atomic<int64_t> sum_ = 0;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_HISTOGRAM_H_
