// Peers: maps gRPC's name of a peer to the owner of the connection. The owner identifies a client
// across its connections, for objects that outlive a connection (registered models): the user of a
// Unix socket ("uid:1000"), or the address of a TCP socket ("ip:192.0.2.7").
//
// A client cannot choose its owner: all loopback addresses are one owner, and an IPv4-mapped IPv6
// address is the IPv4 address. Clients that the server cannot tell apart are one owner as well:
// users without a number in the server's user namespace (the kernel reports each of them as
// /proc/sys/fs/overflowuid), and clients behind one proxy.
//
// gRPC names a connection by the descriptor that it was given ("fd:17"). The descriptor stays open
// while a call of the connection lives, so that its entry is right for each of these calls. The
// next connection with the same descriptor replaces the entry. No entry is removed.
//
// Threading:  Thread-safe.
// Limits:     One entry for each descriptor that the process may open.
#ifndef ROPE_SERVER_MEMORY_PEERS_H_
#define ROPE_SERVER_MEMORY_PEERS_H_

#include <sys/socket.h>
#include <sys/types.h>

#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
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

class Peers {
 public:
  // Sets the owner of the connection that is about to be handed to gRPC as descriptor `fd`.
  void Enter(int fd, const std::string& owner);

  // The owner for gRPC's name of the peer ("fd:17"). "unknown" for any other name.
  std::string OwnerOf(absl::string_view peer) const;

 private:
  mutable proto::SharedMutex mutex_;
  absl::flat_hash_map<int, std::string> owners_ ABSL_GUARDED_BY(mutex_);  // by descriptor
};

}  // namespace rope::server

#endif  // ROPE_SERVER_MEMORY_PEERS_H_
