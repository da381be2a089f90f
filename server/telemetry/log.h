// The server's log: quoted lines of a bounded number, written by a thread that no caller waits
// for.
//
//   LogLimited -> LogLimiter -> Log -> logger -> queue -> LogOutput's thread -> descriptor
#ifndef ROPE_SERVER_TELEMETRY_LOG_H_
#define ROPE_SERVER_TELEMETRY_LOG_H_

#include <spdlog/logger.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/clock.h"

namespace spdlog::details {
class thread_pool;
}

namespace rope::server {
namespace limits {

// Lines of one kind (such as a method and code) that clients cause, of about 200 bytes each.
inline constexpr int64_t kLogLinesPerSecond = 20;
inline constexpr int64_t kLogBurstLines = 20;  // one second of lines
// Lines that wait for the output: one second of fifty kinds at their limit, about half a MiB.
inline constexpr int64_t kLogQueueLines = 1024;

}  // namespace limits

// Returns `text` in double quotes, so that any text stays one field of one line. Quotes,
// backslashes, control characters, invisible characters and invalid UTF-8 become C escapes (\n, or
// \x and two digits for each byte). Other characters are unchanged.
std::string Quoted(absl::string_view text);

// The trace id in `traceparent`, a header of W3C trace context: 32 lowercase digits. Empty: the
// header is empty, or one that W3C declares invalid.
absl::string_view TraceIdOf(absl::string_view traceparent);

// How lines are written: as words and key=value pairs, or as one JSON object each.
enum class LogFormat { kLogfmt, kJson };

// LogLine: the words and the fields of a line. In logfmt they stand in the order of the calls. In
// JSON the words are "msg", and each field is a member.
//
// Threading:  Confined to one thread.
// Limits:     A line that is longer than one write becomes, in JSON, a "msg" with its beginning.
class LogLine {
 public:
  explicit LogLine(absl::string_view words = "") { Words(words); }

  LogLine& Words(absl::string_view words);
  LogLine& Number(absl::string_view key, int64_t value);
  // A value of the server's own, without spaces and quotes.
  LogLine& Word(absl::string_view key, std::string_view value);
  // A value that a client or a file may choose: quoted in logfmt.
  LogLine& Text(absl::string_view key, absl::string_view value);
  // Says that `lines` of its kind were dropped before this one; says nothing if none was.
  LogLine& LeftOut(int64_t lines) { return lines == 0 ? *this : Number("left_out", lines); }

  // The line in `format`, without its time and level.
  std::string In(LogFormat format) const;

 private:
  LogLine& Add(absl::string_view key, absl::string_view logfmt, absl::string_view json);

  std::string logfmt_;
  std::string words_;
  std::string members_;  // the fields in JSON, each after a comma
};

// Why a line was dropped.
enum class LogDrop {
  kRateLimit,  // LogLimiter rejected it
  kOutput,     // the output did not accept it before newer lines filled the queue, or failed
};
inline constexpr int kLogDropCount = 2;

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

// Kinds of lines that clients can cause.
enum class LogKind : size_t {
  kConnection,  // a client connects
  kHello,       // a hello is refused, or served in part
  kRing,        // a client breaks a rule of the ring
  kRegion,      // a system error about a client's memory
  kProtobuf,    // a Protobuf error about a client's bytes
  kGrpc,        // a gRPC error about a client's connection
  kMethod,      // a client calls a method that no service has
  kRefusal,     // a client lacks the credentials or the right
  kCall,        // the first of the kinds of calls, one for each method and code
};
inline constexpr size_t kLogKindsMax = 256;

// LogLimiter::Admit on the process's limiter. REQUIRES: `kind` is below kLogKindsMax.
std::optional<int64_t> AdmitLine(size_t kind);

// Writes a line through spdlog's default logger. Thread-safe.
void Log(spdlog::level::level_enum level, const LogLine& line);

// Calls Log if the kind's limit admits the line. Thread-safe.
void LogLimited(LogKind kind, spdlog::level::level_enum level, LogLine line);

class LogSink;

// LogOutput: the process's logger. A thread writes the lines from a bounded queue, so that logging
// never waits for the reader of the log. When the queue is full, the oldest line is dropped. Before
// the next written line, "lines left out: 7" reports the dropped ones.
//
// Threading:  The logger is thread-safe and never blocks its callers. The output's thread inherits
//             the signal mask of the thread that constructs the output, and lives until the process
//             ends.
// Ownership:  The descriptor belongs to the caller. Its flags stay unchanged: O_NONBLOCK would
//             apply to every process that shares the open file description. The logger may outlive
//             the output and then does nothing.
// Limits:     limits::kLogQueueLines lines wait. A line is one write of at most PIPE_BUF bytes, so
//             that a pipe with room accepts it whole; longer lines are truncated. The destructor
//             takes at most a second. Lines that the descriptor has not accepted by then are
//             dropped. No write begins after it, but one to a terminal may still block.
class LogOutput {
 public:
  // `format`: also that of Log.
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
