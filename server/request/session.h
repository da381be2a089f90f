// Session numbers. A session is a connection. Its requests carry the number, and the listener
// computes the same number before the first request arrives.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_REQUEST_SESSION_H_
#define ROPE_SERVER_REQUEST_SESSION_H_

#include <cstdint>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace rope::server {

// The session number for gRPC's name of the peer. File descriptors are reused, and so are these
// numbers: state of a single connection needs a unique token as well (RegionTable).
inline uint64_t SessionOfPeer(absl::string_view peer) {
  return absl::HashOf(peer);
}

// The session number of a connection that is handed to gRPC as descriptor `fd`.
inline uint64_t SessionOfDescriptor(int fd) {
  return SessionOfPeer(absl::StrCat("fd:", fd));
}

}  // namespace rope::server

#endif  // ROPE_SERVER_REQUEST_SESSION_H_
