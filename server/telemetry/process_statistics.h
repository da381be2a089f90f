// Statistics of this process from /proc, for metrics.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_TELEMETRY_PROCESS_STATISTICS_H_
#define ROPE_SERVER_TELEMETRY_PROCESS_STATISTICS_H_

#include <cstdint>
#include <optional>
#include <string>

namespace rope::server {

struct ProcessStatistics {
  int64_t resident_bytes = 0;
  double cpu_seconds = 0;  // user and system
  int64_t open_fds = 0;
  double start_time_seconds = 0;  // since 1970
};

// nullopt: `proc_root` is not a proc file system.
std::optional<ProcessStatistics> ReadProcessStatistics(const std::string& proc_root = "/proc");

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_PROCESS_STATISTICS_H_
