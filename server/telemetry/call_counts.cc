#include "server/telemetry/call_counts.h"

#include <algorithm>
#include <iterator>

namespace rope::server {
namespace {

constexpr size_t kEqualBounds = 14;  // of our families and gRPC's

constexpr auto kCallDurationBounds = [] {
  std::array<int64_t, std::size(kDurationBounds) + kGrpcDurationBounds.size() - kEqualBounds> all =
      {};
  std::ranges::set_union(kDurationBounds, kGrpcDurationBounds, all.begin());
  return all;
}();
static_assert(kCallDurationBounds.back() == kGrpcDurationBounds.back());

constexpr BucketBounds kCallDurationBuckets(kCallDurationBounds);
constexpr BucketBounds kCallBytesBuckets(kGrpcSizeBounds);

}  // namespace

CallDurationHistogram::CallDurationHistogram() : Histogram(kCallDurationBuckets, 1e9) {}

CallBytesHistogram::CallBytesHistogram() : Histogram(kCallBytesBuckets, 1) {}

void CallCounts::End(const Ended& call) {
  Counts& counts = counts_[IndexOf(call.code)];
  counts.duration.Observe(absl::ToInt64Nanoseconds(call.duration));
  counts.received_bytes.Observe(call.received_bytes);
  counts.sent_bytes.Observe(call.sent_bytes);
}

}  // namespace rope::server
