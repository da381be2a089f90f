// The control plane: shared memory and connections.
//
// Threading:  Values.
#ifndef ROPE_ADMIN_H_
#define ROPE_ADMIN_H_

#include <cstdint>
#include <string>
#include <vector>

namespace rope::client {

// Memory of this connection that the server has mapped: the arena, or staging memory.
struct SharedRegion {
  uint64_t id = 0;
  int64_t bytes = 0;
  std::string kind = {};  // "memfd"
};

// What the server has counted of one client's connection.
struct ClientConnection {
  uint64_t id = 0;             // grows with each connection that the server takes
  std::string owner = {};      // "uid:1000" (the user of a Unix socket), "ip:192.0.2.7" (TCP)
  std::string transport = {};  // "unix" or "tcp"
  int64_t calls = 0;           // begun, through gRPC
  int64_t calls_in_flight = 0;
  int64_t calls_cancelled = 0;  // by the client, well before their deadline
  int64_t message_bytes = 0;    // of complete messages from the client
  int64_t read_bytes = 0;       // of everything that the server has read; TCP only
  int64_t reply_bytes = 0;      // of replies that the client has not taken yet
};

struct ConnectionList {
  std::vector<ClientConnection> connections = {};  // the oldest first
  std::string owner = {};  // only connections of this owner are listed; empty: of all owners
};

}  // namespace rope::client

#endif  // ROPE_ADMIN_H_
