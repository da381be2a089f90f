// Creates listening sockets for `unix:PATH` or HOST:PORT.
//
// Threading:  Functions only.
// Ownership:  The caller owns the sockets, and removes the file at `path` when they are closed.
// Errors:     INVALID_ARGUMENT: the path does not fit a socket address. UNAVAILABLE: another
//             process listens there already, or the address cannot be bound.
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
  std::vector<proto::FileDescriptor> sockets;  // one for each address of the host name
  std::string address;                         // as given, with the port filled in
  std::string path;                            // of a Unix socket; else empty
};

// Returns non-blocking sockets that listen. Deletes any file at a Unix path, whatever its kind, if
// no process listens there. The new file gets `mode`, or else the mode that the umask leaves.
absl::StatusOr<ListenSockets> ListenAt(const std::string& address,
                                       std::optional<mode_t> mode = std::nullopt);

}  // namespace rope::server

#endif  // ROPE_SERVER_IPC_LISTEN_SOCKET_H_
