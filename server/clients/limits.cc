#include "server/clients/limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/telemetry/process.h"

namespace rope::server {
namespace {

// The limit in a file of the system. No limit: the file does not exist, or holds "max".
int64_t ReadLimit(const std::string& path) {
  int64_t bytes = 0;
  const bool any = absl::SimpleAtoi(absl::StripAsciiWhitespace(ReadTextFile(path)), &bytes);
  return any && bytes > 0 ? bytes : std::numeric_limits<int64_t>::max();
}

// The paths in /proc/self/cgroup: of cgroup version 2, and of version 1's memory controller. The
// empty path stands for the root of the mount.
std::vector<std::string> CgroupPaths(const std::string& proc_root) {
  std::vector<std::string> paths = {""};
  const std::string text = ReadTextFile(proc_root + "/self/cgroup");
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3) continue;
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    const bool is_memory = std::ranges::find(controllers, "memory") != controllers.end();
    if (fields[1].empty() || is_memory) paths.push_back(fields[2]);
  }
  return paths;
}

int64_t CgroupLimit(const std::string& cgroup_root, const std::string& proc_root) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const std::string& path : CgroupPaths(proc_root)) {
    least =
        std::min({least, ReadLimit(absl::StrCat(cgroup_root, path, "/memory.max")),
                  ReadLimit(absl::StrCat(cgroup_root, "/memory", path, "/memory.limit_in_bytes"))});
  }
  return least;
}

}  // namespace

int64_t AvailableMemory(const std::string& cgroup_root, const std::string& proc_root) {
  int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  bytes = std::min(bytes, CgroupLimit(cgroup_root, proc_root));
  rlimit limit{};
  if (getrlimit(RLIMIT_DATA, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    bytes = std::min(bytes, static_cast<int64_t>(limit.rlim_cur));
  }
  return bytes;
}

int64_t DefaultMemoryBytes(int64_t available) {
  return std::max(available / 4 * 3, limits::kMemoryBytesMin);
}

int64_t DefaultSharedMemoryBytes(int64_t available, int64_t memory_bytes) {
  return std::clamp(available - memory_bytes, int64_t{0}, limits::kSharedMemoryBytesMax);
}

int64_t DefaultSessionMemoryBytes(int64_t shared_memory_bytes) {
  return std::min(shared_memory_bytes / 2, limits::kSessionMemoryBytesMax);
}

MemoryShares DivideMemory(int64_t memory_bytes, std::optional<int64_t> table_bytes,
                          std::optional<int64_t> message_bytes) {
  MemoryShares shares;
  shares.requests = memory_bytes / 2;
  shares.receive = memory_bytes / 16 * 3;
  shares.pool = std::min(limits::kPooledBytesMax, memory_bytes / 16);
  shares.tables =
      table_bytes.value_or(std::min(limits::kTableCacheBytes, memory_bytes / limits::kTablePart));
  shares.specs = std::min(limits::kSpecBytesMax, memory_bytes / 32);
  shares.prepared = std::min(limits::kPreparedBytesMax, memory_bytes / 64);
  shares.message = message_bytes.value_or(
      std::min(limits::kMessageBytesMax, memory_bytes / limits::kMessagePart));
  return shares;
}

}  // namespace rope::server
