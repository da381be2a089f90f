// Memory, file descriptors and threads of another process, as the kernel counts them.
//
// Threading:  Functions only.
#ifndef ROPE_TESTS_SUPPORT_PROCESS_MEMORY_H_
#define ROPE_TESTS_SUPPORT_PROCESS_MEMORY_H_

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace rope::testing {

// Resident bytes of the process.
inline int64_t ResidentBytes(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  int64_t pages = 0;
  int64_t resident = 0;
  file >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

struct ResidentMemory {
  int64_t own_bytes = 0;     // all except shared_bytes
  int64_t shared_bytes = 0;  // pages of mapped shared memory
};

inline ResidentMemory ResidentMemoryOf(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  ResidentMemory memory;
  std::string word;
  while (file >> word) {
    int64_t kibibytes = 0;
    if (word == "VmRSS:" && file >> kibibytes) memory.own_bytes += kibibytes * 1024;
    if (word == "RssShmem:" && file >> kibibytes) memory.shared_bytes = kibibytes * 1024;
  }
  memory.own_bytes -= memory.shared_bytes;
  return memory;
}

// Anonymous resident memory (RssAnon). 0 once the process has ended.
inline int64_t AnonymousBytes(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  std::string word;
  int64_t kibibytes = 0;
  while (file >> word) {
    if (word == "RssAnon:" && file >> kibibytes) return kibibytes * 1024;
  }
  return 0;
}

inline int OpenDescriptors(pid_t pid) {
  const std::filesystem::directory_iterator open("/proc/" + std::to_string(pid) + "/fd");
  return static_cast<int>(std::distance(begin(open), end(open)));
}

inline int ThreadCount(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/status");
  std::string word;
  int threads = 0;
  while (file >> word) {
    if (word == "Threads:") file >> threads;
  }
  return threads;
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_PROCESS_MEMORY_H_
