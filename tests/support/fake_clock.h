// A clock that stands still until a test moves it.
#ifndef ROPE_TESTS_SUPPORT_FAKE_CLOCK_H_
#define ROPE_TESTS_SUPPORT_FAKE_CLOCK_H_

#include <atomic>

#include "absl/time/time.h"
#include "server/clock.h"

namespace rope::testing {

// Threading:  Thread-safe.
class FakeClock final : public server::Clock {
 public:
  absl::Time Now() const override { return absl::FromUnixMicros(microseconds_.load()); }
  void Advance(absl::Duration by) { microseconds_ += absl::ToInt64Microseconds(by); }

 private:
  std::atomic<int64_t> microseconds_{1'000'000'000};
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_FAKE_CLOCK_H_
