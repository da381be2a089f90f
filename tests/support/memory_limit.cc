#include "tests/support/memory_limit.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <string_view>
#include <thread>

namespace rope::testing {
namespace {

// A process that was waited for may leave its group slightly later.
constexpr int kRemovalsMax = 10'000;

bool WriteTo(int fd, std::string_view text) {
  return fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

proto::FileDescriptor OpenToWrite(const std::string& path) {
  return proto::FileDescriptor(open(path.c_str(), O_WRONLY | O_CLOEXEC));
}

}  // namespace

MemoryLimit::MemoryLimit(int64_t bytes) : bytes_(bytes) {
  if (!kMemoryIsMeasured) return;
  if (MakeGroup("/sys/fs/cgroup/memory", "memory.limit_in_bytes")) return;  // version 1
  MakeGroup("/sys/fs/cgroup", "memory.max");                                // version 2
}

MemoryLimit::~MemoryLimit() {
  RemoveGroup();
}

bool MemoryLimit::MakeGroup(const std::string& root, const std::string& file) {
  static std::atomic<int> count = 0;
  group_ = root + "/rope_test_" + std::to_string(getpid()) + "_" + std::to_string(count++);
  if (mkdir(group_.c_str(), 0755) != 0) {
    group_.clear();
    return false;
  }
  processes_ = OpenToWrite(group_ + "/cgroup.procs");
  const proto::FileDescriptor limit = OpenToWrite(group_ + "/" + file);
  if (processes_.ok() && WriteTo(limit.get(), std::to_string(bytes_))) return true;
  RemoveGroup();
  return false;
}

void MemoryLimit::RemoveGroup() {
  if (group_.empty()) return;
  processes_ = proto::FileDescriptor();
  for (int i = 0; i < kRemovalsMax && rmdir(group_.c_str()) != 0; ++i) std::this_thread::yield();
  group_.clear();
}

void MemoryLimit::Enter() const {
  if (!kMemoryIsMeasured || WriteTo(processes_.get(), "0")) return;
  const rlimit limit = {static_cast<rlim_t>(bytes_), static_cast<rlim_t>(bytes_)};
  setrlimit(RLIMIT_DATA, &limit);
}

const char* MemoryLimit::kind() const {
  if (!kMemoryIsMeasured) return "none";
  return processes_.ok() ? "control group" : "RLIMIT_DATA";
}

}  // namespace rope::testing
