#include "server/telemetry/log.h"

#include <limits.h>
#include <poll.h>
#include <spdlog/async.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/mutex.h"

namespace rope::server {
namespace {

// The first character of a text: its bytes, and its code point unless it is invalid UTF-8.
struct Character {
  size_t bytes = 1;
  std::optional<uint32_t> point = std::nullopt;
};

Character FirstOf(absl::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {1, lead};
  // The smallest code point that needs this number of bytes; a smaller one is an overlong form.
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC0 || lead >= 0xF8 || text.size() < bytes) return {};
  uint32_t point = lead & (0x7FU >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0U) != 0x80) return {};
    point = point << 6U | (next & 0x3FU);
  }
  const bool surrogate = point >= 0xD800 && point <= 0xDFFF;
  if (point < kSmallest[bytes] || point > 0x10FFFF || surrogate) return {};
  return {bytes, point};
}

// Whether a terminal shows the character as it is. Control characters, line and paragraph
// separators, direction marks and zero-width characters are not visible.
bool IsVisible(uint32_t point) {
  struct Range {
    uint32_t first;
    uint32_t last;
  };
  constexpr Range kHidden[] = {{0x00, 0x1F},     {0x7F, 0x9F},      {0xAD, 0xAD},
                               {0x061C, 0x061C}, {0x180E, 0x180E},  {0x200B, 0x200F},
                               {0x2028, 0x202E}, {0x2060, 0x206F},  {0xFEFF, 0xFEFF},
                               {0xFFF9, 0xFFFB}, {0xE0000, 0xE0FFF}};
  return std::ranges::none_of(
      kHidden, [point](const Range& range) { return point >= range.first && point <= range.last; });
}

void AppendEscaped(absl::string_view bytes, std::string& out) {
  for (const char c : bytes) {
    if (c == '\n') {
      out += "\\n";
    } else {
      absl::StrAppend(&out, "\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    }
  }
}

std::array<std::atomic<int64_t>, kLogDropCount> dropped_lines;  // by LogDrop

void CountDrops(LogDrop reason, int64_t lines) {
  dropped_lines[static_cast<size_t>(reason)].fetch_add(lines, std::memory_order_relaxed);
}

constexpr int64_t kTokenNs = 1'000'000'000 / limits::kLogLinesPerSecond;
constexpr int64_t kBucketNs = limits::kLogBurstLines * kTokenNs;

std::atomic<LogFormat> process_format = LogFormat::kLogfmt;

// `text` with escapes for what a terminal does not show. `quotes`: also for quotes, backslashes and
// line feeds.
std::string Escaped(absl::string_view text, bool quotes) {
  std::string out;
  while (!text.empty()) {
    const Character first = FirstOf(text);
    const absl::string_view bytes = text.substr(0, first.bytes);
    text.remove_prefix(first.bytes);
    if (quotes && (bytes == "\"" || bytes == "\\")) {
      absl::StrAppend(&out, "\\", bytes);
    } else if ((first.point.has_value() && IsVisible(*first.point)) || (!quotes && bytes == "\n")) {
      absl::StrAppend(&out, bytes);
    } else {
      AppendEscaped(bytes, out);
    }
  }
  return out;
}

std::string JsonText(absl::string_view text) {
  return nlohmann::json(std::string(text))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// The rest of a line in JSON: its time, its level, and its braces.
constexpr size_t kJsonFrameBytes = 64;
constexpr const char* kLogfmtPattern = "%Y-%m-%dT%H:%M:%S.%e%z %l %v";
constexpr const char* kJsonPattern = R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%v})";

// POSIX writes up to PIPE_BUF bytes to a pipe atomically.
void CutToOneWrite(spdlog::memory_buf_t& line) {
  constexpr std::string_view kCut = "...\n";
  if (line.size() <= PIPE_BUF) return;
  line.resize(PIPE_BUF - kCut.size());
  line.append(kCut.begin(), kCut.end());
}

}  // namespace

// LogSink: writes lines to a descriptor that other processes may share, and waits for room in it.
//
// Threading:  Thread-safe; the base class serializes the lines with a mutex. AwaitFlush and Close
//             take no lock, so that they work while a thread is blocked in a write.
class LogSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  // `overruns`: the number of lines lost before they reached the sink.
  LogSink(int fd, std::function<int64_t()> overruns) : fd_(fd), overruns_(std::move(overruns)) {}

  // Waits for a flush, at most for `timeout`.
  void AwaitFlush(std::chrono::milliseconds timeout) const {
    flushed_.WaitForNotificationWithTimeout(timeout);
  }
  // No write begins after this call: the descriptor may soon refer to another file.
  void Close() { closed_ = true; }

 private:
  // A line is written only after the report of the lines dropped before it, so that the log never
  // has a silent gap.
  void sink_it_(const spdlog::details::log_msg& line) override {
    if (ReportDrops() && Write(line)) return;
    CountDrops(LogDrop::kOutput, 1);
    ++unreported_drops_;
  }
  void flush_() override {
    ReportDrops();
    if (!flushed_.HasBeenNotified()) flushed_.Notify();
  }

  bool ReportDrops();
  void CountOverruns();
  bool Write(const spdlog::details::log_msg& line);

  const int fd_;
  const std::function<int64_t()> overruns_;
  std::atomic<bool> closed_ = false;
  proto::Notification flushed_;
  // Guarded by the base class's mutex.
  int64_t counted_overruns_ = 0;
  int64_t unreported_drops_ = 0;
};

void LogSink::CountOverruns() {
  const int64_t overruns = overruns_();
  CountDrops(LogDrop::kOutput, overruns - counted_overruns_);
  unreported_drops_ += overruns - std::exchange(counted_overruns_, overruns);
}

bool LogSink::ReportDrops() {
  CountOverruns();
  if (unreported_drops_ == 0) return true;
  const int64_t reported = unreported_drops_;
  const std::string text = LogLine(absl::StrCat("lines left out: ", reported)).In(process_format);
  if (!Write({"", spdlog::level::warn, text})) return false;
  unreported_drops_ -= reported;
  return true;
}

// Polls for room even though the descriptor blocks: another process may have made it non-blocking.
// Between polls it counts what the queue loses meanwhile.
bool LogSink::Write(const spdlog::details::log_msg& line) {
  constexpr int kPollMs = 100;
  spdlog::memory_buf_t text;
  formatter_->format(line, text);
  CutToOneWrite(text);
  pollfd room = {fd_, POLLOUT, 0};
  while (!closed_ && poll(&room, 1, kPollMs) <= 0) CountOverruns();
  return !closed_ && write(fd_, text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

std::string Quoted(absl::string_view text) {
  return absl::StrCat("\"", Escaped(text, /*quotes=*/true), "\"");
}

absl::string_view TraceIdOf(absl::string_view traceparent) {
  // "VERSION-TRACE-SPAN-FLAGS". A version above 00 may continue after another dash.
  constexpr absl::string_view kForm = "00-00000000000000000000000000000000-0000000000000000-00";
  if (traceparent.size() < kForm.size()) return {};
  for (size_t i = 0; i < kForm.size(); ++i) {
    const char c = traceparent[i];
    const bool is_digit = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
    if (kForm[i] == '-' ? c != '-' : !is_digit) return {};
  }
  const auto is_zero = [](absl::string_view id) {
    return id.find_first_not_of('0') == absl::string_view::npos;
  };
  const absl::string_view version = traceparent.substr(0, 2);
  const absl::string_view trace = traceparent.substr(3, 32);
  const absl::string_view rest = traceparent.substr(kForm.size());
  if (version == "ff" || is_zero(trace) || is_zero(traceparent.substr(36, 16))) return {};
  if (!rest.empty() && (version == "00" || rest.front() != '-')) return {};
  return trace;
}

LogLine& LogLine::Words(absl::string_view words) {
  for (std::string* const out : {&logfmt_, &words_}) {
    absl::StrAppend(out, out->empty() || words.empty() ? "" : " ", words);
  }
  return *this;
}

LogLine& LogLine::Number(absl::string_view key, int64_t value) {
  const std::string text = absl::StrCat(value);
  return Add(key, text, text);
}

LogLine& LogLine::Word(absl::string_view key, std::string_view value) {
  const std::string word(value);
  return Add(key, word, JsonText(word));
}

LogLine& LogLine::Text(absl::string_view key, absl::string_view value) {
  return Add(key, Quoted(value), JsonText(Escaped(value, /*quotes=*/false)));
}

LogLine& LogLine::Add(absl::string_view key, absl::string_view logfmt, absl::string_view json) {
  absl::StrAppend(&logfmt_, logfmt_.empty() ? "" : " ", key, "=", logfmt);
  absl::StrAppend(&members_, ",\"", key, "\":", json);
  return *this;
}

std::string LogLine::In(LogFormat format) const {
  if (format == LogFormat::kLogfmt) return logfmt_;
  const std::string members = absl::StrCat("\"msg\":", JsonText(words_), members_);
  if (members.size() + kJsonFrameBytes <= PIPE_BUF) return members;
  return absl::StrCat("\"msg\":", JsonText(logfmt_.substr(0, PIPE_BUF / 8)));
}

std::array<int64_t, kLogDropCount> LogDrops() {
  std::array<int64_t, kLogDropCount> drops{};
  std::ranges::copy(dropped_lines, drops.begin());
  return drops;
}

std::optional<int64_t> LogLimiter::Admit(size_t kind) {
  Bucket& bucket = buckets_[kind];
  const int64_t now_ns = absl::ToUnixNanos(clock_.Now());
  int64_t full_at_ns = bucket.full_at_ns.load(std::memory_order_relaxed);
  int64_t next_ns = 0;
  do {
    next_ns = std::max(full_at_ns, now_ns) + kTokenNs;
    if (next_ns > now_ns + kBucketNs) {
      bucket.left_out.fetch_add(1, std::memory_order_relaxed);
      CountDrops(LogDrop::kRateLimit, 1);
      return std::nullopt;
    }
  } while (!bucket.full_at_ns.compare_exchange_weak(full_at_ns, next_ns));
  return bucket.left_out.exchange(0, std::memory_order_relaxed);
}

std::optional<int64_t> AdmitLine(size_t kind) {
  static const SteadyClock clock;
  static auto* const limiter = new LogLimiter(clock, kLogKindsMax);  // owned by the process
  return limiter->Admit(kind);
}

void Log(spdlog::level::level_enum level, const LogLine& line) {
  if (spdlog::should_log(level)) spdlog::log(level, "{}", line.In(process_format));
}

void LogLimited(LogKind kind, spdlog::level::level_enum level, LogLine line) {
  if (!spdlog::should_log(level)) return;
  const std::optional<int64_t> left_out = AdmitLine(static_cast<size_t>(kind));
  if (left_out.has_value()) Log(level, line.LeftOut(*left_out));
}

// A thread that is blocked in a write to a terminal cannot be joined, so no thread is.
LogOutput::LogOutput(int fd, LogFormat format)
    : thread_(new spdlog::details::thread_pool(limits::kLogQueueLines, 1),  // owned by the process
              [](auto*) {}) {
  process_format = format;
  const auto overruns = [queue = thread_.get()] {
    return static_cast<int64_t>(queue->overrun_counter());
  };
  sink_ = std::make_shared<LogSink>(fd, overruns);
  logger_ = std::make_shared<spdlog::async_logger>("rope", sink_, thread_,
                                                   spdlog::async_overflow_policy::overrun_oldest);
  logger_->set_pattern(format == LogFormat::kJson ? kJsonPattern : kLogfmtPattern);
  // The library's default handler writes to standard error and blocks on it.
  logger_->set_error_handler([](const std::string&) {});
}

LogOutput::~LogOutput() {
  logger_->set_level(spdlog::level::off);  // the logger would throw without its queue
  logger_->flush();
  sink_->AwaitFlush(std::chrono::seconds(1));
  sink_->Close();
  process_format = LogFormat::kLogfmt;
}

}  // namespace rope::server
