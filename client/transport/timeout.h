// BoundedTimeout: a caller's timeout, bounded so that no clock overflows when it is added.
#ifndef ROPE_CLIENT_TRANSPORT_TIMEOUT_H_
#define ROPE_CLIENT_TRANSPORT_TIMEOUT_H_

#include <algorithm>
#include <chrono>

namespace rope::client {

// At least 0, at most a day.
template <typename Duration>
std::chrono::microseconds BoundedTimeout(Duration timeout) {
  return std::clamp<Duration>(timeout, Duration(0), std::chrono::hours(24));
}

}  // namespace rope::client

#endif  // ROPE_CLIENT_TRANSPORT_TIMEOUT_H_
