// Options of a connection and of a call.
//
// Threading:  Values.
#ifndef ROPE_OPTIONS_H_
#define ROPE_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <optional>

namespace rope::client {

struct ConnectOptions {
  // How long Connect waits for a connection and for the server to serve.
  std::chrono::milliseconds timeout{5000};
  // Whether Connect fails where the server answers but does not serve (starting, draining).
  bool require_serving = true;
  // How long the calling thread polls for the answer before it sleeps, yielding the processor
  // between polls. Unset: 200 where this process may use more than one processor, else 0. 0: sleeps
  // at once.
  std::optional<std::chrono::microseconds> spin = {};
  // Largest message either way, in bytes: the server's own limit and 1 MiB, so that its error comes
  // first.
  int64_t max_message_bytes = int64_t{257} << 20;
  // How often a call is tried at most, the first time included.
  int attempts_max = 4;
};

struct CallOptions {
  // Time for the whole call, retries included.
  std::chrono::milliseconds timeout{30000};
};

}  // namespace rope::client

#endif  // ROPE_OPTIONS_H_
