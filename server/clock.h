// Clock: injected monotonic time, unrelated to the time of day.
#ifndef ROPE_SERVER_CLOCK_H_
#define ROPE_SERVER_CLOCK_H_

#include <chrono>

#include "absl/time/time.h"

namespace rope::server {

// Threading:  Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;
};

// Microseconds, the unit of replies and metrics. Cheaper than Abseil's conversion, which divides.
inline double Microseconds(absl::Duration duration) {
  return static_cast<double>(absl::ToInt64Nanoseconds(duration)) * 1e-3;
}

// The system's steady clock, with its start taken as 1970.
class SteadyClock final : public Clock {
 public:
  absl::Time Now() const override {
    const auto since_start = std::chrono::steady_clock::now().time_since_epoch();
    return absl::UnixEpoch() + absl::FromChrono(since_start);
  }
};

}  // namespace rope::server

#endif  // ROPE_SERVER_CLOCK_H_
