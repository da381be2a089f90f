// Options of a connection, of a call and of a stream.
//
// Threading:  Values.
#ifndef ROPE_OPTIONS_H_
#define ROPE_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rope::client {

// How tensors in slots of the arena (arena.h), or staged ones, reach the server. Others are always
// inline.
enum class Transport {
  kInline,  // in the message
  kShm,     // POSIX shared memory by name: a server on this host, over any connection
  kMemfd,   // sealed memory that a Unix connection brings along
  kRing,    // the same, and Client::Rotate and streams go through a ring there: no RPC
};

// "inline", "shm", "memfd" or "ring".
const char* Name(Transport transport);

// What Connect settled on.
struct ChosenTransport {
  Transport transport = Transport::kInline;
  std::string reason = {};  // why none of the faster ones; empty for the fastest
};

struct ConnectOptions {
  // How long Connect waits for a connection and for the server to serve.
  std::chrono::milliseconds timeout{5000};
  // Whether Connect fails where the server answers but does not serve (starting, draining).
  bool require_serving = true;
  // How long the calling thread polls for the answer before it sleeps, yielding the processor
  // between polls. Unset: 200 where this process may use more than one processor, else 0. 0: sleeps
  // at once. Of more threads that wait than half of the processors, the later ones sleep at once.
  std::optional<std::chrono::microseconds> spin = {};
  // Largest message either way, in bytes: the server's own limit and 1 MiB, so that its error comes
  // first.
  int64_t max_message_bytes = int64_t{257} << 20;
  // Memory to share with the server, rounded up to whole pages (Client::arena). 0: none.
  int64_t arena_bytes = 0;
  // Memory to share with the server of a "unix:PATH" target for tensors that lie elsewhere, where
  // there is no arena: requests are copied there instead of sent (in an RPC those of 64 KiB and
  // more), rotated there, and copied to where they are wanted, which takes less than half the time.
  // Requests that find no room in it are sent. Its pages are made as they are used, and kept. 0:
  // none.
  int64_t staged_bytes = int64_t{64} << 20;
  // What the arena may use: the fastest that client and server both have. One alone forces it:
  // Connect then fails where it cannot be had. Staging needs kRing or kMemfd.
  std::vector<Transport> transports = {Transport::kRing, Transport::kMemfd, Transport::kShm,
                                       Transport::kInline};
  // Bytes of memory of replies without TensorView::output that the connection keeps once their
  // tensors have gone, for the replies after them; beyond that the longest unused is freed. 0:
  // none.
  int64_t pooled_bytes = int64_t{256} << 20;
  // How often a call is tried at most, the first time included.
  int attempts_max = 4;
};

struct CallOptions {
  // Time for the whole call, retries included.
  std::chrono::milliseconds timeout{30000};
};

struct StreamOptions {
  // Bounds of what is in flight: requests, and the bytes of their messages. A request that is
  // larger than bytes_max goes when nothing else is in flight.
  int64_t requests_max = 1024;
  int64_t bytes_max = int64_t{64} << 20;
  // Time for the whole stream; what is unanswered then ends with DEADLINE_EXCEEDED. Unset: none.
  std::optional<std::chrono::milliseconds> timeout = {};
};

}  // namespace rope::client

#endif  // ROPE_OPTIONS_H_
