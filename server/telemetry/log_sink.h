// LogSink: writes the log's lines to a descriptor that other processes may share and that may take
// none, as a pipe that is not read. A line waits for room for a bounded time, then it is left out;
// after that no line waits until one was written. How many were left out stands in a line of the
// log before the next that is written: "lines left out: 7".
//
// Threading:  Thread-safe; lines wait for each other.
// Ownership:  The descriptor is the caller's and stays as it is (no O_NONBLOCK, which every process
//             with its file description would get).
// Limits:     A line is one write of at most PIPE_BUF bytes, so that a pipe with room takes it
//             whole; longer lines are cut. A terminal, or a pipe that another process fills between
//             the look and the write, may still block a write: LogOutput ends all the same.
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
    std::chrono::milliseconds patience{limits::kLogPatienceMs};  // of a line that waits for room
    // How many lines were lost on the way to the sink, so far; may be null. Called by its methods.
    std::function<int64_t()> lost = nullptr;
  };

  LogSink(int fd, Options options);

  // From the next line on none waits after `end`.
  void EndBy(Instant end) { end_ = end; }
  // From now on no write begins: the descriptor may be another file soon.
  void Close() { closed_ = true; }

 private:
  void sink_it_(const spdlog::details::log_msg& line) override;
  // Says what was left out. Lines themselves are never held back.
  void flush_() override;

  void CountLost();
  bool SayLeftOut();
  bool Write(const spdlog::details::log_msg& line);
  bool AwaitRoom() const;

  const int fd_;
  const Options options_;
  std::atomic<Instant> end_ = Instant::max();
  std::atomic<bool> closed_ = false;
  // Under the base's lock.
  bool failing_ = false;
  int64_t lost_ = 0;
  int64_t unsaid_ = 0;  // lines left out that no line has told of
};

}  // namespace rope::server

#endif  // ROPE_SERVER_TELEMETRY_LOG_SINK_H_
