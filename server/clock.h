// Injected time. It never goes back and says nothing about the time of day.
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

// As replies and metrics count it. Cheaper than Abseil's, which divides.
inline double Microseconds(absl::Duration duration) {
  return static_cast<double>(absl::ToInt64Nanoseconds(duration)) * 1e-3;
}

// The system's steady clock, as if it had started in 1970.
class SteadyClock final : public Clock {
 public:
  absl::Time Now() const override {
    const auto since_start = std::chrono::steady_clock::now().time_since_epoch();
    return absl::UnixEpoch() + absl::FromChrono(since_start);
  }
};

}  // namespace rope::server

#endif  // ROPE_SERVER_CLOCK_H_
