// What Linux says of this process: its processors, memory, time and descriptors; and what its
// threads use inside calls that others watch.
//
// Threading:  Functions; CallWatch is thread-safe.
#ifndef ROPE_SERVER_TELEMETRY_PROCESS_H_
#define ROPE_SERVER_TELEMETRY_PROCESS_H_

#include <atomic>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace rope::server {

// The whole file; empty if it cannot be read.
inline std::string ReadTextFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// The quota in a cgroup v2 `cpu.max` file ("QUOTA PERIOD" or "max PERIOD"), in processors;
// nullopt: no quota.
std::optional<double> ParseCpuMax(absl::string_view text);

// The quota in cgroup v1's cpu.cfs_quota_us and cpu.cfs_period_us, in processors; nullopt: no
// quota.
std::optional<double> ParseCfsQuota(absl::string_view quota_us, absl::string_view period_us);

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

// CallWatch: shows other threads whether a thread is inside a call, such as one into gRPC.
class CallWatch {
 public:
  struct Use {
    absl::Duration used;  // of a processor, by the thread
    int64_t steps = 0;    // entries into calls and returns from them: odd inside
  };

  // On the thread.
  template <typename Call>
  auto Run(const Call& call) {
    const Step inside(steps_);
    return call();
  }
  // On any other. `thread`: the one that runs calls, which has not been joined.
  Use UseOf(std::thread& thread) const;

 private:
  class Step {
   public:
    explicit Step(std::atomic<int64_t>& steps) : steps_(steps) { Count(); }
    ~Step() { Count(); }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    void Count() { steps_.fetch_add(1, std::memory_order_relaxed); }

    std::atomic<int64_t>& steps_;
  };

  std::atomic<int64_t> steps_ = 0;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_PROCESS_H_
