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
  // Called on the queue's own thread, which does not outlive it.
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
  // The library's own handler writes to standard error, and waits for it.
  logger_->set_error_handler([](const std::string&) {});
}

LogOutput::~LogOutput() {
  logger_->set_level(spdlog::level::off);  // without its thread it would throw
  sink_->EndBy(std::chrono::steady_clock::now() + kEnd / 2);
  logger_->flush();
  // What a thread that is held by a write has is not given back before the process ends.
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
