// UnixListener: our own acceptor for `unix:PATH`. It learns who connects (SO_PEERCRED) and hands
// the socket to gRPC, so that every connection is a session of its own; gRPC's own listener calls
// every Unix client "unix:".
//
// Threading:  One thread of its own; Create and the destructor on any other.
// Ownership:  Owns the socket and its file, which it removes when destroyed. `server` must outlive
//             it.
// Errors:     INVALID_ARGUMENT: a path that does not fit a socket address. UNAVAILABLE: somebody
//             listens there already, or the path cannot be bound.
#ifndef ROPE_SERVER_UNIX_LISTENER_H_
#define ROPE_SERVER_UNIX_LISTENER_H_

#include <grpcpp/server.h>

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace rope::server {

class UnixListener {
 public:
  // Listens at `path`; a socket file that nobody listens on any more is replaced.
  static absl::StatusOr<std::unique_ptr<UnixListener>> Create(const std::string& path,
                                                              grpc::Server& server);
  ~UnixListener();
  UnixListener(const UnixListener&) = delete;
  UnixListener& operator=(const UnixListener&) = delete;

 private:
  UnixListener(std::string path, int listener, int wake, grpc::Server& server);
  void AcceptLoop();

  const std::string path_;
  const int listener_;
  const int wake_;  // eventfd: written once, to stop
  grpc::Server& server_;
  std::thread thread_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_UNIX_LISTENER_H_
