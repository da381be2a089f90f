// The number of a session, which is a connection: what its requests carry, and how the listener
// names it before the first of them.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_REQUEST_SESSION_H_
#define ROPE_SERVER_REQUEST_SESSION_H_

#include <cstdint>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace rope::server {

// By what gRPC calls the other end. Numbers come back: what belongs to one connection alone needs
// a name of its own beside (RegionTable).
inline uint64_t SessionOfPeer(absl::string_view peer) {
  return absl::HashOf(peer);
}

// Of a connection that is handed to gRPC as descriptor `fd`.
inline uint64_t SessionOfDescriptor(int fd) {
  return SessionOfPeer(absl::StrCat("fd:", fd));
}

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_SESSION_H_
