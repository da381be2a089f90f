// Sockets to accept connections from: of `unix:PATH` or HOST:PORT.
//
// Threading:  Functions only.
// Ownership:  The caller owns the sockets and removes the file of `path` when they are closed.
// Errors:     INVALID_ARGUMENT: a path that does not fit a socket address. UNAVAILABLE: somebody
//             listens there already, or the address cannot be bound.
#ifndef ROPE_SERVER_IPC_LISTEN_SOCKET_H_
#define ROPE_SERVER_IPC_LISTEN_SOCKET_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/ipc/file_descriptor.h"

namespace rope::server {

inline constexpr char kUnixPrefix[] = "unix:";

struct ListenSockets {
  std::vector<proto::FileDescriptor> sockets;  // a name may stand for several addresses
  std::string address;                         // as given, its port filled in
  std::string path;                            // of a Unix socket; else empty
};

// Listens, without blocking. A socket file that nobody listens on any more is replaced; the new one
// gets `mode`, or what the umask leaves.
absl::StatusOr<ListenSockets> ListenAt(const std::string& address,
                                       std::optional<mode_t> mode = std::nullopt);

}  // namespace rope::server

#endif  // ROPE_SERVER_IPC_LISTEN_SOCKET_H_
