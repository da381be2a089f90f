// Bounds of memory: defaults, shares of --memory_bytes, regions.
#ifndef ROPE_SERVER_MEMORY_LIMITS_H_
#define ROPE_SERVER_MEMORY_LIMITS_H_

#include <cstdint>

#include "server/limits.h"

namespace rope::server::limits {

// Requests admitted and not yet answered.
inline constexpr int64_t kAdmittedRequestsMax = 4096;
inline constexpr int64_t kSpecBytesMax = 64 * kMiB;
inline constexpr int64_t kPreparedBytesMax = 16 * kMiB;
inline constexpr int64_t kTableCacheBytes = 256 * kMiB;
// The smallest --memory_bytes: the program itself, and messages of some MiB.
inline constexpr int64_t kMemoryBytesMin = 64 * kMiB;
inline constexpr int64_t kMemoryBytesCeiling = int64_t{1} << 47;
// Bytes of free output buffers kept for reuse; the rest goes back to the kernel.
inline constexpr int64_t kPooledBytesMax = 1 * kGiB;
// Region ids of a connection, including unregistered ids that requests still use. Clients should
// register one large region and use parts of it.
inline constexpr int64_t kRegionsMax = 64;
// The largest defaults of --shared_memory_bytes and --session_memory_bytes (memory_limit.h).
inline constexpr int64_t kSharedMemoryBytesMax = 16 * kGiB;
inline constexpr int64_t kSessionMemoryBytesMax = 4 * kGiB;
inline constexpr int64_t kSharedMemoryBytesCeiling = int64_t{1} << 47;  // the user address space

static_assert(kSessionMemoryBytesMax <= kSharedMemoryBytesMax);

}  // namespace rope::server::limits

#endif  // ROPE_SERVER_MEMORY_LIMITS_H_
