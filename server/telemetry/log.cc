#include "server/telemetry/log.h"

#include <limits.h>
#include <poll.h>
#include <spdlog/async.h>
#include <spdlog/formatter.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/mutex.h"
#include "server/clock.h"
#include "server/telemetry/limits.h"

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

// POSIX writes up to PIPE_BUF bytes to a pipe atomically.
void CutToOneWrite(spdlog::memory_buf_t& line) {
  constexpr std::string_view kCut = "...\n";
  if (line.size() <= PIPE_BUF) return;
  line.resize(PIPE_BUF - kCut.size());
  line.append(kCut.begin(), kCut.end());
}

}  // namespace

std::string Quoted(absl::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const Character first = FirstOf(text);
    const absl::string_view bytes = text.substr(0, first.bytes);
    text.remove_prefix(first.bytes);
    if (bytes == "\"" || bytes == "\\") {
      absl::StrAppend(&out, "\\", bytes);
    } else if (first.point.has_value() && IsVisible(*first.point)) {
      absl::StrAppend(&out, bytes);
    } else {
      AppendEscaped(bytes, out);
    }
  }
  out.push_back('"');
  return out;
}

namespace {

// The text between the quotes of Quoted. \xNN stays, because its byte may be no text.
std::string Unquoted(absl::string_view quoted) {
  std::string text;
  for (size_t i = 0; i < quoted.size(); ++i) {
    const char next = i + 1 < quoted.size() ? quoted[i + 1] : '\0';
    if (quoted[i] != '\\' || next == 'x') {
      text.push_back(quoted[i]);
      continue;
    }
    text.push_back(next == 'n' ? '\n' : next);
    ++i;
  }
  return text;
}

std::string JsonText(absl::string_view text) {
  return nlohmann::json(std::string(text))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Takes the next word of `line`, which ends at a space outside of quotes.
absl::string_view TakeWord(absl::string_view& line) {
  bool is_quoted = false;
  size_t end = 0;
  for (; end < line.size() && (is_quoted || line[end] != ' '); ++end) {
    if (line[end] == '\\' && is_quoted)
      ++end;
    else if (line[end] == '"')
      is_quoted = !is_quoted;
  }
  end = std::min(end, line.size());
  const absl::string_view word = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return word;
}

// The length of the key of "key=value"; 0: the word is none.
size_t KeyLength(absl::string_view word) {
  const size_t length = word.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789");
  return length != absl::string_view::npos && word[length] == '=' ? length : 0;
}

// JSON of a value as it stands in a line.
std::string JsonValue(absl::string_view value) {
  int64_t number = 0;
  if (absl::SimpleAtoi(value, &number) && absl::StrCat(number) == value) return std::string(value);
  const bool is_quoted = value.size() >= 2 && value.front() == '"' && value.back() == '"';
  return JsonText(is_quoted ? Unquoted(value.substr(1, value.size() - 2)) : std::string(value));
}

class JsonFormatter final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& line, spdlog::memory_buf_t& out) override {
    begin_.format(line, out);
    const absl::string_view text(line.payload.data(), line.payload.size());
    std::string members = JsonMembers(text);
    if (out.size() + members.size() + kEnd.size() > PIPE_BUF) {
      members = absl::StrCat("\"msg\":", JsonText(text.substr(0, PIPE_BUF / 8)));
    }
    for (const std::string_view part : {std::string_view(members), kEnd}) {
      out.append(part.begin(), part.end());
    }
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>();
  }

 private:
  static constexpr std::string_view kEnd = "}\n";
  spdlog::pattern_formatter begin_{R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",)",
                                   spdlog::pattern_time_type::local, ""};
};

}  // namespace

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

std::string JsonMembers(absl::string_view line) {
  std::string words;
  std::string pairs;
  while (!line.empty()) {
    const absl::string_view word = TakeWord(line);
    const size_t key = KeyLength(word);
    if (key == 0) {
      absl::StrAppend(&words, words.empty() ? "" : " ", word);
    } else {
      absl::StrAppend(&pairs, ",\"", word.substr(0, key), "\":", JsonValue(word.substr(key + 1)));
    }
  }
  return absl::StrCat("\"msg\":", JsonText(words), pairs);
}

std::string LeftOut(int64_t lines) {
  return lines == 0 ? "" : absl::StrCat(" left_out=", lines);
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

std::optional<int64_t> AdmitLine(LogKind kind) {
  static const SteadyClock clock;
  static auto* const limiter = new LogLimiter(clock, kLogKindCount);  // owned by the process
  return limiter->Admit(static_cast<size_t>(kind));
}

// A line is written only after the report of the lines dropped before it, so that the log never has
// a silent gap. If the report does not fit, the line is dropped as well.
void LogSink::sink_it_(const spdlog::details::log_msg& line) {
  if (SayLeftOut() && Write(line)) return;
  CountDrops(LogDrop::kOutput, 1);
  ++unsaid_;
}

// options_.lost() is a running total: the difference since the last call is new.
bool LogSink::SayLeftOut() {
  const int64_t lost = options_.lost ? options_.lost() : 0;
  CountDrops(LogDrop::kQueue, lost - lost_);
  unsaid_ += lost - std::exchange(lost_, lost);
  if (unsaid_ == 0) return true;
  const std::string text = absl::StrCat("lines left out: ", unsaid_);
  if (!Write({"", spdlog::level::warn, text})) return false;
  unsaid_ = 0;
  return true;
}

bool LogSink::Write(const spdlog::details::log_msg& line) {
  failing_ = closed_ || !AwaitRoom();
  if (failing_) return false;
  spdlog::memory_buf_t text;
  formatter_->format(line, text);
  CutToOneWrite(text);
  failing_ = write(fd_, text.data(), text.size()) != static_cast<ssize_t>(text.size());
  return !failing_;
}

// Polls for room, because the descriptor is blocking and must stay so. Does not wait at all while
// failing, so that a stuck reader costs `patience` once and not for every line.
bool LogSink::AwaitRoom() const {
  const Instant now = std::chrono::steady_clock::now();
  const Instant until = failing_ ? now : std::min(now + options_.patience, end_.load());
  pollfd room = {fd_, POLLOUT, 0};
  int ready = 0;
  do {
    const auto left = until - std::chrono::steady_clock::now();
    const auto left_ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    ready = poll(&room, 1, static_cast<int>(std::max<int64_t>(left_ms, 0)));
  } while (ready < 0 && errno == EINTR);
  return ready == 1 && (room.revents & POLLOUT) != 0;
}

LogOutput::LogOutput(int fd, LogFormat format)
    : thread_(std::make_shared<spdlog::details::thread_pool>(limits::kLogQueueLines, 1)) {
  // Only the queue's thread calls `lost`, and the queue joins that thread.
  const auto lost = [queue = thread_.get()] {
    return static_cast<int64_t>(queue->overrun_counter());
  };
  sink_ = std::make_shared<LogSink>(fd, LogSink::Options{.lost = lost});
  logger_ = std::make_shared<spdlog::async_logger>("rope", sink_, thread_,
                                                   spdlog::async_overflow_policy::overrun_oldest);
  logger_->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
  if (format == LogFormat::kJson) logger_->set_formatter(std::make_unique<JsonFormatter>());
  // The library's default handler writes to standard error and blocks on it.
  logger_->set_error_handler([](const std::string&) {});
}

// From half of kLogEndMs on, no line waits for room. Destroying the thread pool writes the queue
// and joins its thread, which can block: a write to a terminal has no timeout. A helper thread
// therefore does it. On timeout the sink is closed, so that no later write reaches a descriptor
// number that the process may have reused, and the helper is detached.
LogOutput::~LogOutput() {
  constexpr std::chrono::milliseconds kEnd{limits::kLogEndMs};
  logger_->set_level(spdlog::level::off);  // the logger would throw once its thread is gone
  sink_->EndBy(std::chrono::steady_clock::now() + kEnd / 2);
  logger_->flush();
  // The helper owns the pool: if the pool's thread is blocked, both live until the process ends.
  auto ended = std::make_shared<proto::Notification>();
  std::thread ender([thread = std::move(thread_), ended]() mutable {
    thread.reset();
    ended->Notify();
  });
  if (ended->WaitForNotificationWithTimeout(kEnd)) {
    ender.join();
  } else {
    sink_->Close();
    ender.detach();
  }
}

}  // namespace rope::server
