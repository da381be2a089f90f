// Injected time.
#ifndef ROPE_SERVER_CLOCK_H_
#define ROPE_SERVER_CLOCK_H_

#include "absl/time/clock.h"
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

class SystemClock final : public Clock {
 public:
  absl::Time Now() const override { return absl::Now(); }
};

}  // namespace rope::server

#endif  // ROPE_SERVER_CLOCK_H_
