// Listens for connections, and reads the hello of a connection that begins with one.
//
// ListenAt: creates listening sockets for `unix:PATH` or HOST:PORT.
//
// Threading:  Functions only.
// Ownership:  The caller owns the sockets, and removes the file at `path` (RemoveSocketFile) when
//             they are closed.
// Errors:     INVALID_ARGUMENT: the path does not fit a socket address. UNAVAILABLE: another
//             process listens there already, a file there is no socket, or the address cannot be
//             bound.
#ifndef ROPE_SERVER_IPC_LISTENER_H_
#define ROPE_SERVER_IPC_LISTENER_H_

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/ipc/file_descriptor.h"
#include "proto/ipc/hello.h"
#include "proto/mutex.h"
#include "server/clients/connections.h"
#include "server/ipc/ring.h"

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
// inherit TCP_NODELAY. They end when their peer has not acknowledged data for 20 seconds. A peer
// that is silent for a minute is asked whether it is there.
absl::StatusOr<ListenSockets> ListenAt(const std::string& address,
                                       std::optional<mode_t> mode = std::nullopt);

// Removes the socket at `path`. A file of any other kind stays. False: something is still there.
bool RemoveSocketFile(const std::string& path);

// HelloReader: reads the first bytes of a new connection as they arrive. They are a hello with its
// descriptors (proto/ipc/hello.h), the preface of HTTP/2 or the begin of TLS, which stay in the
// socket.
//
// Threading:  Confined to one thread. Never blocks.
// Ownership:  The caller owns the socket. The reader owns descriptors until they are taken.
// Limits:     Takes 32 bytes and keeps two descriptors; further descriptors are closed on receipt.

class HelloReader {
 public:
  enum class Next {
    kWait,   // more bytes must come
    kPlain,  // for gRPC: HTTP/2's whole preface, or neither; all bytes are still in the socket
    kTls,    // the same, but the client speaks TLS and should not: gRPC's answer tells it
    kNoTls,  // the client does not speak TLS and should
    kHello,  // bytes() is complete
    kClose,  // the client has gone
  };
  enum class Speaks { kHttp2, kHttp2OrHello, kTls };

  // Reads the bytes that have come.
  Next Advance(int socket, Speaks speaks);

  const proto::HelloBytes& bytes() const { return hello_.bytes; }
  // Returns the received descriptors. INVALID_ARGUMENT: their number is not `count`.
  absl::StatusOr<std::vector<proto::FileDescriptor>> ReleaseDescriptors(size_t count);

 private:
  Next Look(int socket, Speaks speaks) const;

  proto::PartialHello hello_;
};

// Listener: the server's own acceptor. It identifies the peer (SO_PEERCRED on a Unix socket), reads
// the hello that may bring memory, enters the connection, and passes the socket to gRPC. The
// connection ends when the socket has closed.
//
//   accepted -> pending (no byte yet) -> hello: answered, or HTTP/2's preface
//      -> passed to gRPC -> watched -> closed
//      -> one too many: closed
//   pending -> closed: after handshake_timeout, or as the oldest of too many
//
// One loop does all of this and never blocks, so a silent connection delays no other.
//
// Threading:  One thread per listener runs the loop. Create and the destructor run on any other.
// Ownership:  Owns its sockets and the file of a Unix socket, which it removes when destroyed.
// Errors:     As ListenAt.

class Listener {
 public:
  struct Options {
    int64_t pending_connections_max = 512;
    // How long a connection may stay pending. A real client sends its preface when it connects.
    absl::Duration handshake_timeout = absl::Minutes(1);
    std::optional<mode_t> socket_mode = std::nullopt;  // as ListenAt
    // Clients begin with TLS, which gRPC does. Not for Unix sockets.
    bool tls = false;
    // Whether a Unix socket's user may bring memory and a ring. Null: everybody may.
    std::function<absl::Status(const std::string& owner)> admit_memory = nullptr;
    // Serves rings that come with hellos; null: no rings. Must outlive the listener.
    RingLoop* rings = nullptr;
    // Takes over a connection and its descriptor. Called on the listener's thread.
    std::function<void(int fd)> hand_on = nullptr;
  };

  // `connections` has what is passed to gRPC, and must outlive the listener.
  static absl::StatusOr<std::unique_ptr<Listener>> Create(const std::string& address,
                                                          Connections& connections,
                                                          Options options);
  // As StopListening. The connections that gRPC has are no longer watched, and no longer count.
  ~Listener();
  // Closes the listening sockets, the file of a Unix socket and all pending connections. May be
  // called again.
  void StopListening();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  const std::string& address() const { return sockets_.address; }

 private:
  using Instant = std::chrono::steady_clock::time_point;

  // A connection that has not been passed to gRPC yet.
  struct PendingConnection {
    proto::FileDescriptor socket;
    std::string owner;  // peers.h
    Instant closes;
    HelloReader reader;
  };
  // A connection that gRPC has, watched through a second descriptor of its socket.
  struct Watched {
    int fd = -1;  // the second descriptor, which `place` owns
    Connections::Place place = {};
  };

  Listener(ListenSockets sockets, proto::FileDescriptor wake, proto::FileDescriptor events,
           Connections& connections, Options options);

  bool is_unix() const { return !sockets_.path.empty(); }
  HelloReader::Speaks Speaks() const {
    if (options_.tls) return HelloReader::Speaks::kTls;
    return is_unix() ? HelloReader::Speaks::kHttp2OrHello : HelloReader::Speaks::kHttp2;
  }
  void Loop();
  // The timeout of the loop's epoll_wait in milliseconds; -1: infinite.
  int TimeoutMs() const;
  bool Watch(int fd, uint32_t what, uint64_t number);
  void Accept(int listening);
  void OnPending(uint64_t number);
  // Logs why a connection closes; a hello is answered with the code.
  void Refuse(const PendingConnection& connection, HelloReader::Next next, const absl::Status& why);
  void CloseOldPending();
  // Enters and watches a connection. RESOURCE_EXHAUSTED: it is one too many, or no descriptor is
  // left to watch it.
  absl::StatusOr<std::shared_ptr<Connection>> Enter(const PendingConnection& pending);
  // Answers a hello. False: the bytes were not a hello, or the answer could not be sent.
  bool AnswerHello(PendingConnection& pending, const std::shared_ptr<Connection>& connection);
  // The result of a hello: the id of its region, and the doorbell of its ring if that is served.
  struct Brought {
    uint64_t region_id = 0;
    proto::FileDescriptor doorbell;
  };
  absl::StatusOr<Brought> RegisterBrought(const absl::StatusOr<proto::ClientHello>& hello,
                                          PendingConnection& pending,
                                          const std::shared_ptr<Connection>& connection);

  ListenSockets sockets_;               // the loop closes the sockets
  const proto::FileDescriptor wake_;    // eventfd: written to stop listening, and to end
  const proto::FileDescriptor events_;  // epoll
  Connections& connections_;
  const Options options_;
  // Confined to the loop. Keys are connection numbers, which only grow: the first is the oldest.
  std::map<uint64_t, PendingConnection> pending_;
  std::map<uint64_t, Watched> watched_;
  uint64_t next_number_ = 0;
  proto::Notification stopped_listening_;
  std::thread thread_;  // last: it uses all members above
};

}  // namespace rope::server

#endif  // ROPE_SERVER_IPC_LISTENER_H_
