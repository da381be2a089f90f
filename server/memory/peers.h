// Peer: the client at the other end of a connection. Connections: counts the connections that gRPC
// has, for each owner, and refuses one beyond a bound.
//
// The owner identifies a client across its connections: for the bound of its connections, and for
// objects that outlive a connection (registered models). It is the user of a Unix socket
// ("uid:1000"), or the address of a TCP socket ("ip:192.0.2.7").
//
// A client cannot choose its owner: all loopback addresses are one owner, and an IPv4-mapped IPv6
// address is the IPv4 address. Clients that the server cannot tell apart are one owner as well:
// users without a number in the server's user namespace (the kernel reports each of them as
// /proc/sys/fs/overflowuid), and clients behind one proxy.
//
// gRPC names a connection by the descriptor that it was given ("fd:17"). The descriptor stays open
// while a call of the connection lives, so that its owner is right for each of these calls. The
// next connection with the same descriptor replaces the owner. No owner is removed.
//
// Threading:  Thread-safe.
// Ownership:  Connections must outlive each Place.
// Limits:     One owner for each descriptor that the process may open, and the bounds.
#ifndef ROPE_SERVER_MEMORY_PEERS_H_
#define ROPE_SERVER_MEMORY_PEERS_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/mutex.h"

namespace rope::server {

struct Peer {
  bool local = false;             // on this host
  std::optional<uid_t> uid = {};  // as the kernel reports it; Unix sockets only
  std::string owner = {};
};

// The peer of a connected socket.
Peer PeerOf(int socket, bool is_unix);
// The peer that has this address on a TCP socket.
Peer PeerAt(const sockaddr_storage& address);

class Connections {
 public:
  struct Bounds {
    int64_t connections_max = 0;
    int64_t owner_connections_max = 0;  // of one owner, so that others find a place
  };
  struct Refusals {
    int64_t full = 0;
    int64_t owner_share = 0;
  };

  // A connection counts until this ends.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept;
    Place& operator=(Place&& other) noexcept;
    ~Place();

   private:
    friend class Connections;
    Place(Connections* connections, std::string owner)
        : connections_(connections), owner_(std::move(owner)) {}

    Connections* connections_ = nullptr;  // null: counts for nothing
    std::string owner_;
  };

  explicit Connections(Bounds bounds) : bounds_(bounds) {}

  // The connection of `owner` that is about to be handed to gRPC as descriptor `fd`.
  // RESOURCE_EXHAUSTED: a bound is reached.
  absl::StatusOr<Place> Enter(int fd, const std::string& owner);

  // The owner for gRPC's name of the peer ("fd:17"). "unknown" for any other name.
  std::string OwnerOf(absl::string_view peer) const;

  const Bounds& bounds() const { return bounds_; }
  int64_t count() const;
  Refusals refusals() const;

 private:
  void Leave(const std::string& owner);

  const Bounds bounds_;
  mutable proto::SharedMutex mutex_;
  absl::flat_hash_map<int, std::string> owners_ ABSL_GUARDED_BY(mutex_);  // by descriptor
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, int64_t> counts_ ABSL_GUARDED_BY(mutex_);  // by owner, > 0
  Refusals refusals_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace rope::server

#endif  // ROPE_SERVER_MEMORY_PEERS_H_
