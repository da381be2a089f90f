// BatchReport: what the batcher reports about each batch that ran.
//
// Threading:  A value.
// Ownership:  `device` is a view into a request of the batch; it is valid only during the call that
//             delivers the report.
#ifndef ROPE_SERVER_TELEMETRY_BATCH_REPORT_H_
#define ROPE_SERVER_TELEMETRY_BATCH_REPORT_H_

#include <cstdint>
#include <string_view>

#include "absl/time/time.h"

namespace rope::server {

// The reason why a batch took no more requests.
enum class ClosedBy {
  kDirect,    // the batch ran on the thread that received it
  kDrained,   // the queue had no request left that fitted
  kBytes,     // the cap in bytes
  kTokens,    // the cap in tokens
  kRequests,  // the cap in requests
  kRows,      // the cap in bytes of table rows to build
  kJobs,      // the cap in jobs
};
inline constexpr int kClosedByCount = 7;

// The value of the metrics' label `closed_by`.
constexpr std::string_view Name(ClosedBy reason) {
  constexpr std::string_view kNames[kClosedByCount] = {"direct",   "drained", "bytes", "tokens",
                                                       "requests", "rows",    "jobs"};
  return kNames[static_cast<int>(reason)];
}

struct BatchReport {
  ClosedBy closed_by = ClosedBy::kDirect;
  std::string_view device;  // of the batch's first request, as the executor set it
  int64_t requests = 0;     // a slice of a large request counts as one
  int64_t tokens = 0;
  int64_t bytes = 0;  // of the inputs or the outputs, whichever is larger
  absl::Time started = {};
  absl::Time finished = {};
};

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_BATCH_REPORT_H_
