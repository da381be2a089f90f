// FileWatch: files that an operator may replace while the server runs. They are read when they have
// changed. Several of them (certificate and key) may be seen between two replacements: content that
// is of no use then changes nothing.
//
// Threading:  Thread-safe. One thread reads at a time.
// Ownership:  What `read` uses must outlive it.
// Limits:     A file has changed if its inode, size or times have.
#ifndef ROPE_SERVER_FILE_WATCH_H_
#define ROPE_SERVER_FILE_WATCH_H_

#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/mutex.h"
#include "server/telemetry/log.h"

namespace rope::server {

class FileWatch {
 public:
  // Reads the files and takes their content. Returns the log line that says so.
  using Read = std::function<absl::StatusOr<LogLine>()>;

  // `kept`: how the log line about content of no use begins.
  FileWatch(std::vector<std::string> paths, std::string kept, Read read)
      : paths_(std::move(paths)), kept_(std::move(kept)), read_(std::move(read)) {}

  // Reads for the first time, without a log line.
  absl::Status Load();
  // Reads again, and logs the outcome.
  void Reload();
  // Reads again if the files have changed, or could not be opened before. An error that was the
  // last one has no log line.
  void Look();

  // How often the content was of no use since Load.
  int64_t failures() const { return failures_.load(); }

 private:
  // Device and inode, size, when it was written, and when its owner or mode changed too. All zero:
  // there is no such file.
  using Stamp = std::tuple<dev_t, ino_t, off_t, time_t, int64_t, time_t, int64_t>;

  static Stamp StampOf(const std::string& path);
  bool HasChanged() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<LogLine> ReadNow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadAgain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::vector<std::string> paths_;
  const std::string kept_;
  const Read read_;
  std::atomic<int64_t> failures_ = 0;
  proto::Mutex mutex_;  // held while the files are read
  std::vector<Stamp> seen_ ABSL_GUARDED_BY(mutex_);
  absl::Status last_error_ ABSL_GUARDED_BY(mutex_);  // that was logged
};

// The content of a file. NOT_FOUND, with the flag's name: it cannot be read. INVALID_ARGUMENT: it
// has more than `bytes_max`.
absl::StatusOr<std::string> ReadFile(absl::string_view flag, const std::string& path,
                                     int64_t bytes_max);

}  // namespace rope::server

#endif  // ROPE_SERVER_FILE_WATCH_H_
