// LogSink: writes log lines to a descriptor. Other processes may share the descriptor, and it may
// accept nothing (a pipe that is not read). Two states:
//
//   writing --- a line waits `patience` without room, or a write fails ---> failing
//   failing --- a line is written at once -------------------------------> writing
//
// While writing, a line waits for room for at most `patience`. While failing, no line waits. Lines
// without room are dropped; the next written line is preceded by "lines left out: 7".
//
// Threading:  Thread-safe; the base class serializes the lines with a mutex.
// Ownership:  The descriptor belongs to the caller. Its flags stay unchanged: O_NONBLOCK would
//             apply to every process that shares the open file description.
// Limits:     A line is one write of at most PIPE_BUF bytes, so that a pipe with room accepts it
//             whole. Longer lines are truncated. A write may still block on a terminal, or on a
//             pipe that another process fills between poll and write; LogOutput ends in bounded
//             time even then.
#ifndef ROPE_SERVER_TELEMETRY_LOG_SINK_H_
#define ROPE_SERVER_TELEMETRY_LOG_SINK_H_

#include <spdlog/sinks/base_sink.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>

#include "server/limits.h"

namespace rope::server {

class LogSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  using Instant = std::chrono::steady_clock::time_point;

  struct Options {
    std::chrono::milliseconds patience{limits::kLogPatienceMs};  // how long a line waits for room
    // Returns the number of lines lost before they reached the sink; may be null. Called under the
    // sink's lock.
    std::function<int64_t()> lost = nullptr;
  };

  LogSink(int fd, Options options);

  // From the next line on, no line waits past `end`.
  void EndBy(Instant end) { end_ = end; }
  // No write begins after this call: the descriptor may soon refer to another file.
  void Close() { closed_ = true; }

 private:
  void sink_it_(const spdlog::details::log_msg& line) override;
  // Reports dropped lines. There is nothing else to flush: the sink does not buffer.
  void flush_() override;

  void CountLost();
  bool SayLeftOut();
  bool Write(const spdlog::details::log_msg& line);
  bool AwaitRoom() const;

  const int fd_;
  const Options options_;
  std::atomic<Instant> end_ = Instant::max();
  std::atomic<bool> closed_ = false;
  // Guarded by the base class's mutex.
  bool failing_ = false;
  int64_t lost_ = 0;    // the last value of options_.lost()
  int64_t unsaid_ = 0;  // dropped lines that the log has not reported yet
};

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_LOG_SINK_H_
