// What Linux says of this process: its processors, memory, time and descriptors; and what its
// threads use inside calls that others watch.
//
// Threading:  Functions; CallWatch is thread-safe, NamedThreads confined to one thread.
#ifndef ROPE_SERVER_TELEMETRY_PROCESS_H_
#define ROPE_SERVER_TELEMETRY_PROCESS_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/clock.h"

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
    absl::Duration used;    // of a processor, by the thread
    int64_t steps = 0;      // entries into calls and returns from them: odd inside
    bool is_guess = false;  // the steps, of NamedThreads
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

// NamedThreads: what threads that a library has started use of a processor. Nobody counts their
// steps: a thread that has used less than half of the time since the last look has returned.
//
// Threading:  Confined to one thread.
class NamedThreads {
 public:
  // `name`: as the kernel has it, which cuts it after 15 bytes. `clock` must outlive it.
  NamedThreads(std::string name, const Clock& clock) : name_(std::move(name)), clock_(clock) {}

  // One for each thread, in the order in which they were found. While they work, it looks for
  // others once a second.
  std::vector<CallWatch::Use> Uses();

 private:
  struct Thread {
    pid_t id = 0;
    CallWatch::Use use = {};
  };
  void Find();

  const std::string name_;
  const Clock& clock_;
  std::vector<Thread> threads_;
  absl::Time looked_at_ = absl::InfinitePast();
  absl::Time found_at_ = absl::InfinitePast();
};

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_PROCESS_H_
