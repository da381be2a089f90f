// The number of processors that this process may use: its affinity mask, bounded by the CPU quota
// of its cgroup (v1 or v2), which a container's --cpus sets.
//
// Threading:  Functions only.
#ifndef ROPE_SERVER_TELEMETRY_PROCESSORS_H_
#define ROPE_SERVER_TELEMETRY_PROCESSORS_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace rope::server {

// The quota in a cgroup v2 `cpu.max` file ("QUOTA PERIOD" or "max PERIOD"), in processors;
// nullopt: no quota.
std::optional<double> ParseCpuMax(absl::string_view text);

// The quota in cgroup v1's cpu.cfs_quota_us and cpu.cfs_period_us, in processors; nullopt: no
// quota.
std::optional<double> ParseCfsQuota(absl::string_view quota_us, absl::string_view period_us);

// At least 1. `cgroup_root` is /sys/fs/cgroup.
int ProcessorCount(const std::string& cgroup_root = "/sys/fs/cgroup");

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_PROCESSORS_H_
