// Bounds of connections that have not said what they are.
#ifndef ROPE_SERVER_IPC_LIMITS_H_
#define ROPE_SERVER_IPC_LIMITS_H_

#include <cstdint>

namespace rope::server::limits {

// Pending connections (no whole preface yet), and how long they may stay so. A real client sends
// its HTTP/2 preface when it connects.
inline constexpr int64_t kPendingConnectionsMax = 512;
inline constexpr int64_t kPendingMs = 10'000;

}  // namespace rope::server::limits

#endif  // ROPE_SERVER_IPC_LIMITS_H_
