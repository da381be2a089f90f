// FileWatch: tells when files were replaced or written, from what the file system says of them. An
// operator who replaces several files (certificate and key) is seen between two of them: the reader
// must take the old content if the new one does not fit together.
//
// Threading:  Confined to its owner.
#ifndef ROPE_SERVER_FILE_WATCH_H_
#define ROPE_SERVER_FILE_WATCH_H_

#include <sys/stat.h>

#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/error.h"

namespace rope::server {

class FileWatch {
 public:
  explicit FileWatch(std::vector<std::string> paths) : paths_(std::move(paths)) {}

  // Whether a file is another one, or has other content, than at the call before. True at the first
  // call. Follows links, as those of a mounted Kubernetes secret.
  bool HasChanged() {
    std::vector<Stamp> now;
    for (const std::string& path : paths_) now.push_back(StampOf(path));
    if (now == seen_) return false;
    seen_ = std::move(now);
    return true;
  }

  // The next HasChanged is true: what was seen could not be read.
  void Forget() { seen_.clear(); }

 private:
  // Device and inode, size, when it was written, and when its owner or mode changed too. All zero:
  // there is no such file.
  using Stamp = std::tuple<dev_t, ino_t, off_t, time_t, int64_t, time_t, int64_t>;

  static Stamp StampOf(const std::string& path) {
    struct stat about {};
    if (stat(path.c_str(), &about) != 0) return {};
    return {about.st_dev,          about.st_ino,         about.st_size,        about.st_mtim.tv_sec,
            about.st_mtim.tv_nsec, about.st_ctim.tv_sec, about.st_ctim.tv_nsec};
  }

  const std::vector<std::string> paths_;
  std::vector<Stamp> seen_;
};

// The content of a file. NOT_FOUND, with the flag's name: it cannot be read. INVALID_ARGUMENT: it
// has more than `bytes_max`.
inline absl::StatusOr<std::string> ReadFile(absl::string_view flag, const std::string& path,
                                            int64_t bytes_max) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  // A folder opens, but nothing can be read from it.
  if (!file.is_open() || file.bad() || text.fail()) {
    return absl::NotFoundError(
        absl::StrCat(flag, ": got ", proto::NoContentOf(path), ", want a file with content"));
  }
  std::string content = text.str();
  if (static_cast<int64_t>(content.size()) > bytes_max) {
    return InvalidField(flag, absl::StrCat(content.size(), " bytes in ", path),
                        absl::StrCat("at most ", bytes_max));
  }
  return content;
}

}  // namespace rope::server

#endif  // ROPE_SERVER_FILE_WATCH_H_
