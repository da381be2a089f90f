#include "client/cli/load/latency_histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace rope::client {

size_t LatencyHistogram::BucketOf(uint64_t value) {
  const int shift = std::max(0, static_cast<int>(std::bit_width(value)) - 1 - kFractionBits);
  return (static_cast<size_t>(shift) << kFractionBits) + static_cast<size_t>(value >> shift);
}

uint64_t LatencyHistogram::LargestIn(size_t bucket) {
  const size_t shift = std::max<size_t>(bucket >> kFractionBits, 1) - 1;
  const uint64_t first_bits = bucket - (shift << kFractionBits);
  return ((first_bits + 1) << shift) - 1;
}

void LatencyHistogram::Add(std::chrono::nanoseconds latency) {
  const auto value = static_cast<uint64_t>(std::max<int64_t>(latency.count(), 0));
  ++counts_[BucketOf(value)];
  ++count_;
  largest_ = std::max(largest_, value);
}

void LatencyHistogram::Merge(const LatencyHistogram& other) {
  for (size_t i = 0; i < kBuckets; ++i) counts_[i] += other.counts_[i];
  count_ += other.count_;
  largest_ = std::max(largest_, other.largest_);
}

std::chrono::nanoseconds LatencyHistogram::Percentile(double percent) const {
  const auto rank = static_cast<int64_t>(std::ceil(static_cast<double>(count_) * percent / 100));
  int64_t seen = 0;
  uint64_t bound = 0;
  for (size_t i = 0; i < kBuckets && seen < rank; ++i) {
    seen += counts_[i];
    if (counts_[i] > 0) bound = LargestIn(i);
  }
  return std::chrono::nanoseconds(static_cast<int64_t>(std::min(bound, largest_)));
}

}  // namespace rope::client
