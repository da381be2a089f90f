// Bounds of connections.
#ifndef ROPE_SERVER_IPC_LIMITS_H_
#define ROPE_SERVER_IPC_LIMITS_H_

#include <cstdint>

#include "absl/time/time.h"

namespace rope::server::limits {

// Pending connections (no whole preface yet), and how long they may stay so. A real client sends
// its HTTP/2 preface when it connects.
inline constexpr int64_t kPendingConnectionsMax = 512;
inline constexpr absl::Duration kHandshakeTimeout = absl::Seconds(10);
// More than a process can open files for.
inline constexpr int64_t kMaxConnectionsCeiling = int64_t{1} << 30;

}  // namespace rope::server::limits

#endif  // ROPE_SERVER_IPC_LIMITS_H_
