// BatchReport: what the batcher says of each batch that ran.
//
// Threading:  A value.
// Ownership:  `device` refers to a request of the batch: valid during the call that reports it.
#ifndef ROPE_SERVER_TELEMETRY_BATCH_REPORT_H_
#define ROPE_SERVER_TELEMETRY_BATCH_REPORT_H_

#include <cstdint>
#include <string_view>

#include "absl/time/time.h"

namespace rope::server {

// Why nothing more went into a batch.
enum class ClosedBy {
  kDirect,    // it ran on the thread that received it
  kDrained,   // nothing was left that it could take
  kBytes,     // the cap in bytes
  kTokens,    // the cap in tokens
  kRequests,  // the cap in requests
  kRows,      // the cap in table rows that have to be built
};
inline constexpr int kClosedByCount = 6;

// As metrics name it.
constexpr std::string_view Name(ClosedBy reason) {
  constexpr std::string_view kNames[kClosedByCount] = {"direct", "drained",  "bytes",
                                                       "tokens", "requests", "rows"};
  return kNames[static_cast<int>(reason)];
}

struct BatchReport {
  ClosedBy closed_by = ClosedBy::kDirect;
  std::string_view device;  // that the executor named in the batch's first request
  int64_t requests = 0;     // a slice of a large request counts as one
  int64_t tokens = 0;
  int64_t bytes = 0;  // of input or output, whichever is larger
  absl::Time started = {};
  absl::Time finished = {};
};

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_BATCH_REPORT_H_
