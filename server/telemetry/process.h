// What Linux says of this process: its processors, memory, time and descriptors.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_TELEMETRY_PROCESS_H_
#define ROPE_SERVER_TELEMETRY_PROCESS_H_

#include <cstdint>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

namespace rope::server {

// The whole file; empty if it cannot be read.
inline std::string ReadTextFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The number of processors that this process may use: its affinity mask, bounded by the CPU quota
// of its cgroup (v1 or v2), which a container's --cpus sets. At least 1. `cgroup_root` is
// /sys/fs/cgroup.
int ProcessorCount(const std::string& cgroup_root = "/sys/fs/cgroup");

// Statistics of this process from /proc, for metrics.
struct ProcessStatistics {
  int64_t resident_bytes = 0;
  double cpu_seconds = 0;  // user and system
  int64_t open_fds = 0;
  double start_time_seconds = 0;  // since 1970
};

// nullopt: `proc_root` is not a proc file system.
std::optional<ProcessStatistics> ReadProcessStatistics(const std::string& proc_root = "/proc");

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_PROCESS_H_
