// Creates listening sockets for `unix:PATH` or HOST:PORT.
//
// Threading:  Functions only.
// Ownership:  The caller owns the sockets, and removes the file at `path` (RemoveSocketFile) when
//             they are closed.
// Errors:     INVALID_ARGUMENT: the path does not fit a socket address. UNAVAILABLE: another
//             process listens there already, a file there is no socket, or the address cannot be
//             bound.
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

// Returns non-blocking sockets that listen, with the kernel's largest backlog. A socket at a Unix
// path goes if no process listens there; the new one gets `mode`, or else the mode that the umask
// leaves. The address 0.0.0.0 serves IPv6 too, as [::] serves IPv4. Connections that are accepted
// inherit TCP_NODELAY, and end 20 seconds after their peer has last acknowledged data.
absl::StatusOr<ListenSockets> ListenAt(const std::string& address,
                                       std::optional<mode_t> mode = std::nullopt);

// Removes the socket at `path`. A file of any other kind stays. False: something is still there.
bool RemoveSocketFile(const std::string& path);

}  // namespace rope::server

#endif  // ROPE_SERVER_IPC_LISTEN_SOCKET_H_
