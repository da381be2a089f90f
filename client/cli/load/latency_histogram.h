// LatencyHistogram: counts latencies in buckets whose width is 1/64 of their value. A percentile is
// at most 1.6 % too large, and the memory does not depend on the count.
//
// Threading:  Confined to one thread. Use one per thread and Merge.
// Limits:     Up to 2^63 nanoseconds; 30 KiB.
#ifndef ROPE_CLIENT_CLI_LOAD_LATENCY_HISTOGRAM_H_
#define ROPE_CLIENT_CLI_LOAD_LATENCY_HISTOGRAM_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace rope::client {

class LatencyHistogram {
 public:
  void Add(std::chrono::nanoseconds latency);  // negative latencies count as 0
  void Merge(const LatencyHistogram& other);

  int64_t count() const { return count_; }
  // The smallest bucket bound that at least `percent` of the latencies do not exceed; 0 if there
  // are no latencies. Exact at 100. REQUIRES: 0 < percent <= 100.
  std::chrono::nanoseconds Percentile(double percent) const;

 private:
  static constexpr int kFractionBits = 6;
  static constexpr size_t kBuckets = static_cast<size_t>(64 - kFractionBits) << kFractionBits;

  // Values below 2 * 2^kFractionBits have one bucket each; above, the leading bits select one.
  static size_t BucketOf(uint64_t value);
  static uint64_t LargestIn(size_t bucket);

  std::array<int64_t, kBuckets> counts_ = {};
  int64_t count_ = 0;
  uint64_t largest_ = 0;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CLI_LOAD_LATENCY_HISTOGRAM_H_
