// File descriptors and threads of another process, as the kernel counts them.
//
// Threading:  Functions only.
#ifndef ROPE_TESTS_SUPPORT_PROCESS_FOOTPRINT_H_
#define ROPE_TESTS_SUPPORT_PROCESS_FOOTPRINT_H_

#include <sys/types.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace rope::testing {

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

#endif  // ROPE_TESTS_SUPPORT_PROCESS_FOOTPRINT_H_
