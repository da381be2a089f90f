// LogOutput: the process's logger. A thread writes the lines from a bounded queue, so that logging
// never waits for the reader of the log. When the queue is full, the oldest line is dropped.
//
//   caller -> logger -> queue (kLogQueueLines) -> thread -> LogSink -> descriptor
//
// Threading:  The logger is thread-safe and never blocks its callers. The output's thread inherits
//             the signal mask of the thread that constructs the output.
// Ownership:  The descriptor belongs to the caller. The logger may outlive the output and then does
//             nothing.
// Limits:     limits::kLogQueueLines lines wait. The destructor takes at most kLogEndMs. Lines that
//             the descriptor has not accepted by then are dropped. A thread that is still blocked
//             in a write then is abandoned until the process ends.
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
  // Writes the queued lines.
  ~LogOutput();
  LogOutput(const LogOutput&) = delete;
  LogOutput& operator=(const LogOutput&) = delete;

  const std::shared_ptr<spdlog::logger>& logger() const { return logger_; }

 private:
  std::shared_ptr<spdlog::details::thread_pool> thread_;  // one thread and the queue
  std::shared_ptr<LogSink> sink_;
  std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_LOG_OUTPUT_H_
