// How much memory the server may use, and how it is divided.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_MEMORY_MEMORY_LIMIT_H_
#define ROPE_SERVER_MEMORY_MEMORY_LIMIT_H_

#include <cstdint>
#include <optional>
#include <string>

namespace rope::server {

// What a process here may have: the least of the machine's memory, its cgroup's limit (version 1 or
// 2, at the mount's root, as containers see it, or at the path that /proc/self/cgroup names) and
// RLIMIT_DATA. The parameters replace the system's in tests.
int64_t AvailableMemory(const std::string& cgroup_root = "/sys/fs/cgroup",
                        const std::string& proc_root = "/proc");

// The default of --memory_bytes: three quarters of what there is. The rest is for code, stacks, the
// kernel's buffers and pages of the clients that the server touches first.
int64_t DefaultMemoryBytes(int64_t available);

// Parts of --memory_bytes. What is left is for what belongs to none of them.
struct MemoryShares {
  int64_t requests = 0;  // a half: requests from their message to their reply's end
  int64_t receive = 0;   // three sixteenths: messages that are being read
  int64_t pool = 0;      // a sixteenth, at most 1 GiB: free buffers that are kept
  int64_t tables = 0;    // --table_cache_bytes, or a 24th, at most 256 MiB
  // Above them all, as much as they are together: what gRPC holds of received bytes.
  int64_t transport = 0;
  int64_t message = 0;  // --max_message_bytes, or an eighth, at most 256 MiB
};
MemoryShares DivideMemory(int64_t memory_bytes, std::optional<int64_t> table_bytes,
                          std::optional<int64_t> message_bytes);

}  // namespace rope::server

#endif  // ROPE_SERVER_MEMORY_MEMORY_LIMIT_H_
