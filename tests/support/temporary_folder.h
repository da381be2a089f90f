// Folders for what a test writes, under one of this process in /tmp (whatever TMPDIR says) that
// goes with it when it ends, unless a signal ends it.
//
// Threading:  Any thread.
#ifndef ROPE_TESTS_SUPPORT_TEMPORARY_FOLDER_H_
#define ROPE_TESTS_SUPPORT_TEMPORARY_FOLDER_H_

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace rope::testing {

class ProcessFolder {
 public:
  ~ProcessFolder() {
    if (getpid() != owner_) return;  // a child that was forked
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }

  // Made when it is first asked for. Short: the paths of sockets are.
  static const ProcessFolder& Get() {
    static const ProcessFolder folder;
    return folder;
  }

 private:
  ProcessFolder() {
    if (mkdtemp(path_.data()) == nullptr) std::abort();
  }

  std::string path_ = "/tmp/rope_test_XXXXXX";
  const pid_t owner_ = getpid();
};

// A new, empty folder.
inline std::string TemporaryFolder() {
  static std::atomic<int> count = 0;
  std::string path = ProcessFolder::Get().path() + "/" + std::to_string(count++);
  std::filesystem::create_directory(path);  // throws
  return path;
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_TEMPORARY_FOLDER_H_
