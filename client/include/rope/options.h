// Options of a connection and of a call.
//
// Threading:  Values.
#ifndef ROPE_OPTIONS_H_
#define ROPE_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace rope::client {

// How the server gets the bytes of tensors in arena slots (arena.h), and of staged tensors
// (ConnectOptions::staged_bytes). All other tensors travel inline.
enum class Transport {
  kInline,  // in the message
  kMemfd,   // sealed memfd, passed to the server over the Unix socket
  kRing,    // as kMemfd, plus a ring in shared memory: Rotate and RotateAsync need no RPC
  // No server: the call runs in this process (embedded.h). Not for ConnectOptions::transports.
  kInProcess,
};

// "inline", "memfd", "ring" or "in_process".
const char* Name(Transport transport);

// The transport that Connect chose.
struct ChosenTransport {
  Transport transport = Transport::kInline;
  std::string reason = {};  // why no faster transport was available; empty for the fastest
};

// TLS of a TCP connection. Files are PEM. They are read at Connect, and again within a minute after
// they changed, for new connections.
struct TlsOptions {
  bool enabled = false;  // "https://" before the target and each file below say the same
  // The authorities that the server's certificate must come from. Empty: gRPC's own or the
  // system's.
  std::string ca_file = {};
  // The client's certificate chain and its key, for servers that ask for them. Both or neither.
  std::string cert_file = {};
  std::string key_file = {};
  // The name that the server's certificate must have. Empty: the host of the target. Required for
  // several addresses, whose certificates share it.
  std::string server_name = {};
};

struct ConnectOptions {
  // Time limit of Connect: to establish the connection and get the answer of the health check.
  std::chrono::milliseconds timeout{5000};
  // True: Connect fails if the server answers but does not serve (it starts or drains).
  bool require_serving = true;
  // How long a synchronous call polls for its answer before its thread sleeps. It yields the
  // processor between polls. Unset: 200 microseconds if the process may use more than one
  // processor, else 0. 0: sleep at once. When as many threads wait as half the processors, further
  // threads sleep at once.
  std::optional<std::chrono::microseconds> spin = {};
  // Largest message in either direction, in bytes. The default is the server's own limit plus
  // 1 MiB, so that the server's error, which names the limit, comes first.
  int64_t max_message_bytes = int64_t{257} << 20;
  // Size of the arena (Client::arena), in bytes, rounded up to whole pages. 0: no arena.
  int64_t arena_bytes = 0;
  // Size of the staging memory, in bytes. 0: none. Used only with a "unix:PATH" target and without
  // an arena. The client copies the tensors of a request into memory shared with the server; the
  // server rotates them there; the client copies the results to their outputs. This takes less
  // than half the time of sending them. Through a ring all requests are staged, in an RPC those
  // with at least 64 KiB of tensors. A request that does not fit into the free staging memory is
  // sent inline. Pages are created on first use and kept.
  int64_t staged_bytes = int64_t{64} << 20;
  // The allowed transports. Connect chooses the fastest that both sides support. With a single
  // entry Connect fails if that one is not available. Staging requires kRing or kMemfd.
  std::vector<Transport> transports = {Transport::kRing, Transport::kMemfd, Transport::kInline};
  // Memory of replies without TensorView::output, in bytes, that the connection keeps for reuse
  // after their tensors have been destroyed. Beyond this the least recently used memory is freed.
  // 0: none is kept.
  int64_t pooled_bytes = int64_t{256} << 20;
  // INVALID_ARGUMENT: with a Unix target; a file that cannot be read.
  TlsOptions tls = {};
  // Goes with each RPC as "authorization: Bearer TOKEN"; without TLS anybody on the way can read
  // it. A ring has no RPCs: there the server knows the client by its Unix user. Printable ASCII
  // without spaces.
  std::string token = {};
  // A file whose first line is the token, instead of `token`. It is read at Connect, and again
  // after the server has refused the token (UNAUTHENTICATED).
  std::string token_file = {};
};

// gRPC metadata: names of a-z 0-9 - _ . and their values, in printable ASCII, or of any bytes where
// the name ends with "-bin". gRPC keeps some names for itself: those that begin with "grpc", "lb-"
// or "content-", and host, te, user-agent, connection.
using Metadata = std::vector<std::pair<std::string, std::string>>;

// The policy of a call.
struct CallOptions {
  // Time limit of the whole call, including retries. Clamped to 0 to 24 hours.
  std::chrono::milliseconds timeout{30000};
  // Maximum number of attempts, including the first; 1 at least.
  int attempts_max = 4;
  // Delay before the second attempt, of which half is random. Each further delay is twice as long,
  // up to backoff_max, and the server's own delay comes on top. Clamped to 0 to 24 hours.
  std::chrono::milliseconds backoff_initial{100};
  std::chrono::milliseconds backoff_max{5000};
  // Sent with each RPC of the call, for proxies and logs; not by Fence and ImportMemory. Calls
  // through the ring and in process have none. INVALID_ARGUMENT: as Metadata says.
  Metadata metadata = {};
};

}  // namespace rope::client

#endif  // ROPE_OPTIONS_H_
