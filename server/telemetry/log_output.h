// LogOutput: the process's logger. Lines wait in a bounded queue for a thread that writes them, so
// that logging never waits for who reads the log; where the queue is full the oldest line goes.
//
// Threading:  The logger is thread-safe. Blocks no caller.
// Ownership:  The descriptor is the caller's. The logger may outlive the output; it does nothing
//             then. Signals that are blocked when the output is made are blocked on its thread.
// Limits:     limits::kLogQueueLines lines wait. The destructor takes kLogEndMs at most: what the
//             descriptor has not taken by then is left out, and a thread that a write holds for
//             longer is left to the end of the process.
#ifndef ROPE_SERVER_TELEMETRY_LOG_OUTPUT_H_
#define ROPE_SERVER_TELEMETRY_LOG_OUTPUT_H_

#include <spdlog/logger.h>

#include <memory>

#include "server/telemetry/log_sink.h"

namespace spdlog::details {
class thread_pool;
}

namespace rope::server {

class LogOutput {
 public:
  // Writes to `fd`.
  explicit LogOutput(int fd);
  // Writes what waits.
  ~LogOutput();
  LogOutput(const LogOutput&) = delete;
  LogOutput& operator=(const LogOutput&) = delete;

  const std::shared_ptr<spdlog::logger>& logger() const { return logger_; }

 private:
  std::shared_ptr<spdlog::details::thread_pool> thread_;  // with the queue
  std::shared_ptr<LogSink> sink_;
  std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_LOG_OUTPUT_H_
