#include "server/telemetry/log_limiter.h"

#include <algorithm>

#include "server/limits.h"
#include "server/telemetry/log_drops.h"

namespace rope::server {
namespace {

constexpr int64_t kTokenNs = 1'000'000'000 / limits::kLogLinesPerSecond;
constexpr int64_t kBucketNs = limits::kLogBurstLines * kTokenNs;

}  // namespace

LogLimiter::LogLimiter(const Clock& clock, size_t kinds) : clock_(clock), buckets_(kinds) {}

std::optional<int64_t> LogLimiter::Admit(size_t kind) {
  Bucket& bucket = buckets_[kind];
  const int64_t now_ns = absl::ToUnixNanos(clock_.Now());
  int64_t full_at_ns = bucket.full_at_ns.load(std::memory_order_relaxed);
  int64_t next_ns = 0;
  do {
    next_ns = std::max(full_at_ns, now_ns) + kTokenNs;
    if (next_ns > now_ns + kBucketNs) {
      bucket.left_out.fetch_add(1, std::memory_order_relaxed);
      CountLogDrops(LogDrop::kRateLimit, 1);
      return std::nullopt;
    }
  } while (!bucket.full_at_ns.compare_exchange_weak(full_at_ns, next_ns));
  return bucket.left_out.exchange(0, std::memory_order_relaxed);
}

}  // namespace rope::server
