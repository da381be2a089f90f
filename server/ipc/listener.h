// Listener: our own acceptor. It learns who connects (SO_PEERCRED on a Unix socket), reads a hello
// that brings memory, and hands the socket on, so that every connection is a session of its own,
// opened here before its first request and closed here when the socket has.
//
//   accepted -> silent, until its first byte: kPendingMs at most, and the oldest goes where there
//   are too many -> hello answered, if it is one -> handed on -> watched until it closes
//
// All of it is one loop that never blocks: a connection that says nothing holds up nobody.
//
// Threading:  One thread of its own; Create and the destructor on any other.
// Ownership:  Owns its sockets, and the file of a Unix one, which it removes when destroyed.
//             `regions` must outlive it; sessions stay open in it when the listener goes.
// Errors:     As ListenAt.
#ifndef ROPE_SERVER_IPC_LISTENER_H_
#define ROPE_SERVER_IPC_LISTENER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/ipc/file_descriptor.h"
#include "server/ipc/hello_reader.h"
#include "server/ipc/listen_socket.h"
#include "server/ipc/ring_loop.h"
#include "server/limits.h"
#include "server/memory/peers.h"
#include "server/memory/regions.h"

namespace rope::server {

class Listener {
 public:
  struct Options {
    int64_t pending_connections_max = limits::kPendingConnectionsMax;
    absl::Duration pending_max = absl::Milliseconds(limits::kPendingMs);
    std::optional<mode_t> socket_mode = std::nullopt;  // as ListenAt
    // Serves rings that hellos bring; null: no rings. Must outlive the listener.
    RingLoop* rings = nullptr;
    // Learns the owner of each connection that is handed on; null: nobody asks. Must outlive the
    // listener.
    Peers* peers = nullptr;
    // Takes a connection over, with its descriptor. Called on the listener's thread.
    std::function<void(int fd)> hand_on = nullptr;
  };

  static absl::StatusOr<std::unique_ptr<Listener>> Create(const std::string& address,
                                                          RegionTable& regions, Options options);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Ports filled in.
  const std::string& address() const { return sockets_.address; }

 private:
  using Instant = std::chrono::steady_clock::time_point;

  // A connection that has not been handed on.
  struct PendingConnection {
    proto::FileDescriptor socket;
    Peer peer;
    Instant closes;
    HelloReader reader;
  };
  // A session, by a second descriptor of its socket: gRPC has the first.
  struct Watched {
    proto::FileDescriptor socket;
    uint64_t token = 0;
  };

  Listener(ListenSockets sockets, proto::FileDescriptor wake, proto::FileDescriptor events,
           RegionTable& regions, Options options);

  bool is_unix() const { return !sockets_.path.empty(); }
  void Loop();
  // What the loop waits for at most, in milliseconds; -1: for ever.
  int TimeoutMs() const;
  bool Watch(int fd, uint32_t what, uint64_t number);
  void Accept(int listening);
  void OnPending(uint64_t number);
  void CloseOldPending();
  // Opens the session of a connection; returns its token, or 0: it has none, because shared memory
  // is off or no descriptor is left to watch it by. Its hello is refused then.
  uint64_t OpenSession(const PendingConnection& connection);
  // Answers a hello; false: it was none.
  bool AnswerHello(PendingConnection& connection, uint64_t token);
  // What the connection brought: its region, by id, and the doorbell of its ring where that is
  // served.
  struct Brought {
    uint64_t region_id = 0;
    proto::FileDescriptor doorbell;
  };
  absl::StatusOr<Brought> RegisterBrought(const absl::StatusOr<proto::ClientHello>& hello,
                                          PendingConnection& connection, uint64_t token);
  absl::StatusOr<proto::FileDescriptor> OpenRing(uint64_t bytes, uint64_t session, uint64_t token,
                                                 proto::FileDescriptor memfd);

  const ListenSockets sockets_;
  const proto::FileDescriptor wake_;    // eventfd: written once, to stop
  const proto::FileDescriptor events_;  // epoll
  RegionTable& regions_;
  const Options options_;
  // Confined to the loop; both by number, which counts connections: the first is the oldest.
  std::map<uint64_t, PendingConnection> pending_;
  std::map<uint64_t, Watched> watched_;
  uint64_t next_number_ = 0;
  std::thread thread_;  // last: starts when everything else stands
};

}  // namespace rope::server

#endif  // ROPE_SERVER_IPC_LISTENER_H_
