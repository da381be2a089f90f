#include "server/telemetry/log_sink.h"

#include <limits.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/telemetry/log_drops.h"

namespace rope::server {
namespace {

// POSIX writes up to PIPE_BUF bytes to a pipe atomically.
void CutToOneWrite(spdlog::memory_buf_t& line) {
  constexpr std::string_view kCut = "...\n";
  if (line.size() <= PIPE_BUF) return;
  line.resize(PIPE_BUF - kCut.size());
  line.append(kCut.begin(), kCut.end());
}

}  // namespace

LogSink::LogSink(int fd, Options options) : fd_(fd), options_(std::move(options)) {}

// The base class holds its mutex in sink_it_ and flush_, and therefore in every private method
// below. EndBy and Close take no lock: they store to atomics, so that they work while a thread is
// blocked in a write with the mutex held.

// A line is written only after the report of the lines dropped before it, so that the log never has
// a silent gap. If the report does not fit, the line is dropped as well.
void LogSink::sink_it_(const spdlog::details::log_msg& line) {
  CountLost();
  if (SayLeftOut() && Write(line)) return;
  CountLogDrops(LogDrop::kOutput, 1);
  ++unsaid_;
}

void LogSink::flush_() {
  CountLost();
  SayLeftOut();
}

// options_.lost() is a running total; adds the difference since the last call.
void LogSink::CountLost() {
  const int64_t lost = options_.lost ? options_.lost() : 0;
  CountLogDrops(LogDrop::kQueue, lost - lost_);
  unsaid_ += lost - lost_;
  lost_ = lost;
}

bool LogSink::SayLeftOut() {
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

}  // namespace rope::server
