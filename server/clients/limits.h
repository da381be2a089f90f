// The memory that the server may use, its division into shares, and the bounds of both.
#ifndef ROPE_SERVER_CLIENTS_LIMITS_H_
#define ROPE_SERVER_CLIENTS_LIMITS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "server/limits.h"

namespace rope::server {
namespace limits {

// Requests admitted and not yet answered.
inline constexpr int64_t kAdmittedRequestsMax = 4096;
// Calls of the control plane that wait or run on the side thread: twice those that one connection
// may have under way.
inline constexpr int64_t kControlCallsMax = 2 * kConcurrentStreamsMax;
// Watch streams of health.
inline constexpr int64_t kWatchesMax = 1024;
inline constexpr int64_t kSpecBytesMax = 64 * kMiB;
inline constexpr int64_t kPreparedBytesMax = 16 * kMiB;
inline constexpr int64_t kTableCacheBytes = 256 * kMiB;
// --memory_bytes divided by these: the most that a message may take, and that tables do by default.
inline constexpr int64_t kMessagePart = 8;
inline constexpr int64_t kTablePart = 24;
// The smallest --memory_bytes: the program itself, and messages of some MiB.
inline constexpr int64_t kMemoryBytesMin = 64 * kMiB;
inline constexpr int64_t kMemoryBytesCeiling = int64_t{1} << 47;
// Bytes of free output buffers kept for reuse; the rest goes back to the kernel.
inline constexpr int64_t kPooledBytesMax = 1 * kGiB;
// Region ids of a connection, including unregistered ids that requests still use. Clients should
// register one large region and use parts of it.
inline constexpr int64_t kRegionsMax = 64;
// The largest defaults of --shared_memory_bytes and --session_memory_bytes.
inline constexpr int64_t kSharedMemoryBytesMax = 16 * kGiB;
inline constexpr int64_t kSessionMemoryBytesMax = 4 * kGiB;
inline constexpr int64_t kSharedMemoryBytesCeiling = int64_t{1} << 47;  // the user address space

static_assert(kSessionMemoryBytesMax <= kSharedMemoryBytesMax);

}  // namespace limits

// The memory available to this process: the minimum of the machine's memory, the limit of the
// process's cgroup and RLIMIT_DATA. The cgroup is of version 1 or 2; its limit is read at the root
// of the mount, as containers see it, and at the path that /proc/self/cgroup names. Tests pass
// folders of their own.
int64_t AvailableMemory(const std::string& cgroup_root = "/sys/fs/cgroup",
                        const std::string& proc_root = "/proc");

// The default of --memory_bytes: three quarters of the available memory. The rest is for code,
// stacks, the kernel's buffers and pages of client memory that the server touches first.
int64_t DefaultMemoryBytes(int64_t available);

// The default of --shared_memory_bytes: what `memory_bytes` leaves of the available memory. It is
// the clients', but pages that they have not touched are charged to the server when a request
// touches them.
int64_t DefaultSharedMemoryBytes(int64_t available, int64_t memory_bytes);

// The default of --session_memory_bytes: half of all shared memory.
int64_t DefaultSessionMemoryBytes(int64_t shared_memory_bytes);

// Shares of --memory_bytes. The remainder is for memory that belongs to no share.
struct MemoryShares {
  int64_t requests = 0;  // a half: requests from their message to the end of their reply
  int64_t receive = 0;   // three sixteenths: messages that are being read
  // These four have bounds above, by default; so has `message`.
  int64_t pool = 0;      // a sixteenth: free buffers kept for reuse
  int64_t tables = 0;    // --table_cache_bytes, or the part of kTablePart
  int64_t specs = 0;     // a 32nd: resolved specs
  int64_t prepared = 0;  // a 64th: prepared requests
  int64_t message = 0;   // --max_message_bytes, or the part of kMessagePart
};
MemoryShares DivideMemory(int64_t memory_bytes, std::optional<int64_t> table_bytes,
                          std::optional<int64_t> message_bytes);

}  // namespace rope::server

#endif  // ROPE_SERVER_CLIENTS_LIMITS_H_
