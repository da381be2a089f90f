// LogLimiter: bounds the lines that clients can cause. Of each kind, a burst of kLogBurstLines is
// admitted, then kLogLinesPerSecond. What a kind is, a number, the caller decides.
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

  // Nothing: the line is to be left out. Else how many of its kind were left out since the last
  // that was admitted.
  std::optional<int64_t> Admit(size_t kind);

 private:
  // A token bucket by the time when it is full again: each line that is admitted moves that on.
  struct Bucket {
    std::atomic<int64_t> full_at_ns = 0;
    std::atomic<int64_t> left_out = 0;
  };

  const Clock& clock_;
  std::vector<Bucket> buckets_;  // by kind; constant in number
};

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_LOG_LIMITER_H_
