#include "server/telemetry/call_counts.h"

namespace rope::server {
namespace {

constexpr BucketBounds kCallDurationBuckets(kGrpcDurationBounds);
constexpr BucketBounds kCallBytesBuckets(kGrpcSizeBounds);

}  // namespace

CallCounts::Counts::Counts()
    : duration(kCallDurationBuckets, 1e9),
      received_bytes(kCallBytesBuckets, 1),
      sent_bytes(kCallBytesBuckets, 1) {}

void CallCounts::End(const Ended& call) {
  Counts& counts = counts_[IndexOf(call.code)];
  counts.duration.Observe(absl::ToInt64Nanoseconds(call.duration));
  counts.received_bytes.Observe(call.received_bytes);
  counts.sent_bytes.Observe(call.sent_bytes);
}

}  // namespace rope::server
