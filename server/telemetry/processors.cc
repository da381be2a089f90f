#include "server/telemetry/processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "server/telemetry/text_file.h"

namespace rope::server {
namespace {

int AffinityCount() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(CPU_COUNT(&set), 1);
}

}  // namespace

std::optional<double> ParseCpuMax(absl::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ' ');
  if (parts.size() != 2) return std::nullopt;
  return ParseCfsQuota(parts[0], parts[1]);
}

std::optional<double> ParseCfsQuota(absl::string_view quota_us, absl::string_view period_us) {
  double quota = 0;
  double period = 0;
  if (!absl::SimpleAtod(absl::StripAsciiWhitespace(quota_us), &quota)) return std::nullopt;
  if (!absl::SimpleAtod(absl::StripAsciiWhitespace(period_us), &period)) return std::nullopt;
  if (!(quota > 0) || !(period > 0)) return std::nullopt;
  return quota / period;
}

int ProcessorCount(const std::string& cgroup_root) {
  const int affinity = AffinityCount();
  std::optional<double> quota = ParseCpuMax(ReadTextFile(cgroup_root + "/cpu.max"));
  if (!quota.has_value()) {
    quota = ParseCfsQuota(ReadTextFile(cgroup_root + "/cpu/cpu.cfs_quota_us"),
                          ReadTextFile(cgroup_root + "/cpu/cpu.cfs_period_us"));
  }
  if (!quota.has_value()) return affinity;
  return static_cast<int>(std::clamp(std::floor(*quota), 1.0, static_cast<double>(affinity)));
}

}  // namespace rope::server
