// Memory of another process, as the kernel counts it.
#ifndef ROPE_TESTS_SUPPORT_PROCESS_MEMORY_H_
#define ROPE_TESTS_SUPPORT_PROCESS_MEMORY_H_

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace rope::testing {

// Bytes that the process has in memory.
inline int64_t ResidentBytes(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  int64_t pages = 0;
  int64_t resident = 0;
  file >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_PROCESS_MEMORY_H_
