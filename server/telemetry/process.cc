#include "server/telemetry/process.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace rope::server {
namespace {

int AffinityCount() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(CPU_COUNT(&set), 1);
}

// A quota in microseconds of a period, in processors; nullopt: "max", or none.
std::optional<double> ParseQuota(absl::string_view quota_us, absl::string_view period_us) {
  double quota = 0;
  double period = 0;
  if (!absl::SimpleAtod(absl::StripAsciiWhitespace(quota_us), &quota)) return std::nullopt;
  if (!absl::SimpleAtod(absl::StripAsciiWhitespace(period_us), &period)) return std::nullopt;
  if (!(quota > 0) || !(period > 0)) return std::nullopt;
  return quota / period;
}

// The boot time of the machine, in seconds since 1970.
std::optional<int64_t> ReadBootTime(const std::string& proc_root) {
  std::ifstream file(proc_root + "/stat");
  int64_t seconds = 0;
  for (std::string word; file >> word;) {
    if (word == "btime" && file >> seconds) return seconds;
  }
  return std::nullopt;
}

int64_t CountEntries(const std::string& folder) {
  std::error_code error;
  int64_t count = 0;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) ++count;
  return count;
}

}  // namespace

int ProcessorCount(const std::string& cgroup_root) {
  const int affinity = AffinityCount();
  const std::string cpu_max = ReadTextFile(cgroup_root + "/cpu.max");
  const std::vector<std::string> parts = absl::StrSplit(cpu_max, ' ');
  std::optional<double> quota;
  if (parts.size() == 2) quota = ParseQuota(parts[0], parts[1]);
  if (!quota.has_value()) {
    quota = ParseQuota(ReadTextFile(cgroup_root + "/cpu/cpu.cfs_quota_us"),
                       ReadTextFile(cgroup_root + "/cpu/cpu.cfs_period_us"));
  }
  if (!quota.has_value()) return affinity;
  return static_cast<int>(std::clamp(std::floor(*quota), 1.0, static_cast<double>(affinity)));
}

std::optional<ProcessStatistics> ReadProcessStatistics(const std::string& proc_root) {
  const std::string text = ReadTextFile(proc_root + "/self/stat");
  // The second field is the program's name in parentheses, which may contain any character.
  const size_t name_end = text.rfind(") ");
  const std::optional<int64_t> boot_time = ReadBootTime(proc_root);
  if (name_end == std::string::npos || !boot_time.has_value()) return std::nullopt;
  const std::vector<std::string> fields = absl::StrSplit(text.substr(name_end + 2), ' ');
  int64_t values[4] = {};
  constexpr size_t kFields[4] = {14, 15, 22, 24};  // utime, stime, starttime, rss in proc(5)
  for (size_t i = 0; i < 4; ++i) {
    const size_t index = kFields[i] - 3;  // the field after the name has number 3
    if (index >= fields.size() || !absl::SimpleAtoi(fields[index], &values[i])) return std::nullopt;
  }
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  ProcessStatistics result;
  result.cpu_seconds = static_cast<double>(values[0] + values[1]) / ticks;
  result.start_time_seconds =
      static_cast<double>(*boot_time) + static_cast<double>(values[2]) / ticks;
  result.resident_bytes = values[3] * sysconf(_SC_PAGESIZE);
  result.open_fds = CountEntries(proc_root + "/self/fd");
  return result;
}

}  // namespace rope::server
