#include "server/telemetry/log_output.h"

#include <spdlog/async.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "proto/mutex.h"
#include "server/limits.h"

namespace rope::server {
namespace {

constexpr std::chrono::milliseconds kEnd{limits::kLogEndMs};

LogSink::Options SinkOptions(spdlog::details::thread_pool* queue) {
  LogSink::Options options;
  // The pointer stays valid: only the queue's thread calls this, and the queue joins that thread.
  options.lost = [queue] { return static_cast<int64_t>(queue->overrun_counter()); };
  return options;
}

}  // namespace

LogOutput::LogOutput(int fd)
    : thread_(std::make_shared<spdlog::details::thread_pool>(limits::kLogQueueLines, 1)),
      sink_(std::make_shared<LogSink>(fd, SinkOptions(thread_.get()))),
      logger_(std::make_shared<spdlog::async_logger>(
          "rope", sink_, thread_, spdlog::async_overflow_policy::overrun_oldest)) {
  logger_->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
  // The library's default handler writes to standard error and blocks on it.
  logger_->set_error_handler([](const std::string&) {});
}

// How shutdown stays bounded. The sink gets a deadline at half of kLogEndMs, after which no line
// waits for room. The queue is then drained by destroying the thread pool, which joins its thread.
// That join can block: a write to a terminal has no timeout. It therefore runs on a helper thread,
// and the destructor waits for it at most kLogEndMs. On timeout the sink is closed, so that no
// later write reaches a descriptor number that the process may have reused, and the helper is
// detached. No lock is held here; LogSink's base class locks each write.
LogOutput::~LogOutput() {
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
