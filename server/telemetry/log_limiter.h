// LogLimiter: bounds the rate of the log lines that clients can cause. Each kind of line has its
// own token bucket: a burst of kLogBurstLines, then kLogLinesPerSecond. A kind is an index that the
// caller chooses.
//
// Threading:  Thread-safe, without a lock.
// Ownership:  `clock` must outlive it.
#ifndef ROPE_SERVER_TELEMETRY_LOG_LIMITER_H_
#define ROPE_SERVER_TELEMETRY_LOG_LIMITER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "server/clock.h"

namespace rope::server {

class LogLimiter {
 public:
  LogLimiter(const Clock& clock, size_t kinds);

  // nullopt: the line must be dropped. Otherwise the number of lines of this kind that were dropped
  // since the last admitted one.
  std::optional<int64_t> Admit(size_t kind);

 private:
  // A token bucket, stored as the time at which it will be full again. Each admitted line moves
  // that time by the cost of one token.
  struct Bucket {
    std::atomic<int64_t> full_at_ns = 0;
    std::atomic<int64_t> left_out = 0;
  };

  const Clock& clock_;
  std::vector<Bucket> buckets_;  // by kind; never resized
};

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_LOG_LIMITER_H_
