// Who is at the other end of a connection, and Peers, which says it of a call by what gRPC calls
// its peer. An owner is what things are counted by that outlive a connection: the user of a Unix
// socket ("uid:1000"), the address of a TCP socket ("ip:192.0.2.7").
//
// What a client could choose does not make it another owner: all loopback addresses are one, and
// an address in IPv6's form of IPv4 is that of IPv4. What the server cannot tell apart is one owner
// too: users without a number in its user namespace (the system gives each of them that of
// /proc/sys/fs/overflowuid), and clients behind one proxy.
//
// gRPC names a connection of our listener by its descriptor ("fd:17"), which stays open as long as
// one of its calls lives. So its entry is right for each of them, and is replaced when the system
// gives the number to the next connection; none is removed.
//
// Threading:  Thread-safe.
// Limits:     An entry for each descriptor that the process may open.
#ifndef ROPE_SERVER_MEMORY_PEERS_H_
#define ROPE_SERVER_MEMORY_PEERS_H_

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
  std::optional<uid_t> uid = {};  // as the system says; of a Unix socket alone
  std::string owner = {};
};

// The other end of a socket that is connected.
Peer PeerOf(int socket, bool is_unix);

class Peers {
 public:
  // Of the connection that is about to be handed to gRPC as descriptor `fd`.
  void Enter(int fd, const std::string& owner);

  // By what gRPC calls the other end: "fd:17", "ipv4:192.0.2.7:4711", "ipv6:%5B::1%5D:4711".
  // "unknown": it calls it otherwise.
  std::string OwnerOf(absl::string_view peer) const;

 private:
  mutable proto::SharedMutex mutex_;
  absl::flat_hash_map<int, std::string> owners_ ABSL_GUARDED_BY(mutex_);  // by descriptor
};

}  // namespace rope::server

#endif  // ROPE_SERVER_MEMORY_PEERS_H_
