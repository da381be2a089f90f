#include "server/file_watch.h"

#include <cerrno>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "server/error.h"

namespace rope::server {

absl::Status FileWatch::Load() {
  proto::MutexLock lock(&mutex_);
  HasChanged();
  return ReadNow().status();
}

void FileWatch::Reload() {
  proto::MutexLock lock(&mutex_);
  HasChanged();
  last_error_ = absl::OkStatus();
  ReadAgain();
}

void FileWatch::Look() {
  proto::MutexLock lock(&mutex_);
  if (HasChanged()) ReadAgain();
}

// Follows links, as those of a mounted Kubernetes secret.
FileWatch::Stamp FileWatch::StampOf(const std::string& path) {
  struct stat about {};
  if (stat(path.c_str(), &about) != 0) return {};
  return {about.st_dev,          about.st_ino,         about.st_size,        about.st_mtim.tv_sec,
          about.st_mtim.tv_nsec, about.st_ctim.tv_sec, about.st_ctim.tv_nsec};
}

bool FileWatch::HasChanged() {
  std::vector<Stamp> now;
  for (const std::string& path : paths_) now.push_back(StampOf(path));
  const bool has_changed = now != seen_;
  seen_ = std::move(now);
  return has_changed;
}

// A file that cannot be opened may be readable at the next look, without another change.
absl::StatusOr<LogLine> FileWatch::ReadNow() {
  absl::StatusOr<LogLine> line = read_();
  if (absl::IsNotFound(line.status())) seen_.clear();
  return line;
}

void FileWatch::ReadAgain() {
  const absl::StatusOr<LogLine> line = ReadNow();
  if (line.ok()) {
    Log(spdlog::level::info, *line);
  } else {
    failures_.fetch_add(1);
    if (line.status() != last_error_) {
      Log(spdlog::level::err, LogLine(absl::StrCat(kept_, line.status().message())));
    }
  }
  last_error_ = line.status();
}

absl::StatusOr<std::string> ReadFile(absl::string_view flag, const std::string& path,
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
