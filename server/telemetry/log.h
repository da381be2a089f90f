// The server's log: quoted lines of a bounded number, written by a thread that no caller waits
// for.
//
//   LogLimited -> LogLimiter -> logger -> queue -> LogOutput's thread -> LogSink -> descriptor
#ifndef ROPE_SERVER_TELEMETRY_LOG_H_
#define ROPE_SERVER_TELEMETRY_LOG_H_

#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/clock.h"
#include "server/telemetry/limits.h"

namespace spdlog::details {
class thread_pool;
}

namespace rope::server {

// Returns `text` in double quotes, so that any text stays one field of one line. Quotes,
// backslashes, control characters, invisible characters and invalid UTF-8 become C escapes (\n, or
// \x and two digits for each byte). Other characters are unchanged.
std::string Quoted(absl::string_view text);

// The trace id in `traceparent`, a header of W3C trace context: 32 lowercase digits. Empty: the
// header is empty, or one that W3C declares invalid.
absl::string_view TraceIdOf(absl::string_view traceparent);

// How lines are written: as they are logged, words and key=value pairs, or as one JSON object each.
enum class LogFormat { kLogfmt, kJson };

// The members of a JSON object that says what a line says: `"msg":"audit: refused","peer":"uid:7"`.
// The words before and between the pairs are "msg". Values are texts, numbers where they are whole
// numbers without quotes.
std::string JsonMembers(absl::string_view line);

// The suffix of a line that follows `lines` dropped ones of its kind: " left_out=7", or nothing.
std::string LeftOut(int64_t lines);

// Why a line was dropped.
enum class LogDrop {
  kRateLimit,  // LogLimiter rejected it
  kQueue,      // the queue was full
  kOutput,     // the output did not accept it in time
};
inline constexpr int kLogDropCount = 3;

// The lines that the process has dropped, indexed by LogDrop. Thread-safe.
std::array<int64_t, kLogDropCount> LogDrops();

// LogLimiter: bounds the rate of the log lines that clients can cause. Each kind of line has its
// own token bucket: a burst of kLogBurstLines, then kLogLinesPerSecond. A kind is an index that the
// caller chooses.
//
// Threading:  Thread-safe, without a lock.
// Ownership:  `clock` must outlive it.
class LogLimiter {
 public:
  LogLimiter(const Clock& clock, size_t kinds) : clock_(clock), buckets_(kinds) {}

  // nullopt: the line must be dropped. Otherwise the number of lines of this kind that were dropped
  // since the last admitted one.
  std::optional<int64_t> Admit(size_t kind);

 private:
  // A token bucket, stored as the time at which it will be full again. Each admitted line moves
  // that time by the cost of one token.
  struct Bucket {
    std::atomic<int64_t> full_at_ns = 0;
    std::atomic<int64_t> left_out = 0;
  };

  const Clock& clock_;
  std::vector<Bucket> buckets_;  // by kind; never resized
};

// Kinds of lines that clients can cause. The service has its own kinds for calls (rope_service.h).
enum class LogKind {
  kConnection,  // a client connects
  kHello,       // a hello is refused, or served in part
  kRing,        // a client breaks a rule of the ring
  kRegion,      // a system error about a client's memory
  kProtobuf,    // a Protobuf error about a client's bytes
  kGrpc,        // a gRPC error about a client's connection
  kDevice,      // the accelerator refuses a batch
  kMethod,      // a client calls a method that no service has
  kRefusal,     // a client lacks the credentials or the right
};
inline constexpr int kLogKindCount = 10;

// LogLimiter::Admit on the process's limiter.
std::optional<int64_t> AdmitLine(LogKind kind);

// Calls spdlog::log if the kind's limit admits the line. Thread-safe.
template <typename... Args>
void LogLimited(LogKind kind, spdlog::level::level_enum level,
                spdlog::format_string_t<Args...> format, Args&&... args) {
  if (!spdlog::should_log(level)) return;
  const std::optional<int64_t> left_out = AdmitLine(kind);
  if (!left_out.has_value()) return;
  spdlog::log(level, "{}{}", spdlog::fmt_lib::format(format, std::forward<Args>(args)...),
              LeftOut(*left_out));
}

// LogSink: writes log lines to a descriptor. Other processes may share the descriptor, and it may
// accept nothing (a pipe that is not read). Two states:
//
//   writing --- a line waits `patience` without room, or a write fails ---> failing
//   failing --- a line is written at once -------------------------------> writing
//
// While failing, no line waits. Lines without room are dropped; the next written line is preceded
// by "lines left out: 7".
//
// Threading:  Thread-safe; the base class serializes the lines with a mutex.
// Ownership:  The descriptor belongs to the caller. Its flags stay unchanged: O_NONBLOCK would
//             apply to every process that shares the open file description.
// Limits:     A line is one write of at most PIPE_BUF bytes, so that a pipe with room accepts it
//             whole. Longer lines are truncated; in JSON their members are one cut "msg". A write
//             may still block on a terminal, or on a pipe that another process fills between poll
//             and write; LogOutput ends in bounded time even then.
class LogSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  using Instant = std::chrono::steady_clock::time_point;

  struct Options {
    std::chrono::milliseconds patience{limits::kLogPatienceMs};  // how long a line waits for room
    // Returns the number of lines lost before they reached the sink; may be null. Called under the
    // sink's lock.
    std::function<int64_t()> lost = nullptr;
  };

  LogSink(int fd, Options options) : fd_(fd), options_(std::move(options)) {}

  // These take no lock, so that they work while a thread is blocked in a write.
  // From the next line on, no line waits past `end`.
  void EndBy(Instant end) { end_ = end; }
  // No write begins after this call: the descriptor may soon refer to another file.
  void Close() { closed_ = true; }

 private:
  void sink_it_(const spdlog::details::log_msg& line) override;
  void flush_() override { SayLeftOut(); }

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

// LogOutput: the process's logger. A thread writes the lines from a bounded queue, so that logging
// never waits for the reader of the log. When the queue is full, the oldest line is dropped.
//
// Threading:  The logger is thread-safe and never blocks its callers. The output's thread inherits
//             the signal mask of the thread that constructs the output.
// Ownership:  The descriptor belongs to the caller. The logger may outlive the output and then does
//             nothing.
// Limits:     limits::kLogQueueLines lines wait. The destructor takes at most kLogEndMs. Lines that
//             the descriptor has not accepted by then are dropped. A thread that is still blocked
//             in a write then is abandoned until the process ends.
class LogOutput {
 public:
  explicit LogOutput(int fd, LogFormat format = LogFormat::kLogfmt);
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

#endif  // ROPE_SERVER_TELEMETRY_LOG_H_
