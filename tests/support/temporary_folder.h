// Folders for the files of a test. They lie in one folder of this process under /tmp (whatever
// TMPDIR says), which is removed when the process ends, unless a signal ends it.
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
    if (getpid() != owner_) return;  // a forked child
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }

  // Created on first use. The name is short, because socket paths are limited.
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

// Creates a new, empty folder.
inline std::string TemporaryFolder() {
  static std::atomic<int> count = 0;
  std::string path = ProcessFolder::Get().path() + "/" + std::to_string(count++);
  std::filesystem::create_directory(path);  // throws on failure
  return path;
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_TEMPORARY_FOLDER_H_
