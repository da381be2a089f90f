#include "server/telemetry/log_sink.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <signal.h>
#include <spdlog/logger.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "server/telemetry/log_drops.h"
#include "tests/support/log_pipe.h"

namespace rope::server {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::EndsWith;

int64_t Dropped(LogDrop reason) {
  return LogDrops()[static_cast<size_t>(reason)];
}

class LogSinkTest : public ::testing::Test {
 protected:
  void Start(LogSink::Options options) {
    sink_ = std::make_shared<LogSink>(pipe_.fd(), std::move(options));
    sink_->set_pattern("%v");
    log_ = std::make_unique<spdlog::logger>("test", sink_);
  }

  testing::LogPipe pipe_;
  std::shared_ptr<LogSink> sink_;
  std::unique_ptr<spdlog::logger> log_;
};

TEST_F(LogSinkTest, EachLineIsThereAtOnce) {
  Start({});
  log_->info("one");
  EXPECT_EQ(pipe_.Read(), "one\n");
  log_->info("two");
  EXPECT_EQ(pipe_.Read(), "two\n");
}

TEST_F(LogSinkTest, LineWaitsForAReaderThatIsSlow) {
  Start({.patience = hours(1)});
  pipe_.Fill();
  std::string read;
  std::thread reader([&] {
    while (read.find("late") == std::string::npos) read += pipe_.Read();
  });
  log_->info("late");
  reader.join();
  EXPECT_THAT(read, EndsWith("-late\n"));
}

TEST_F(LogSinkTest, FullPipeHoldsUpOneLineAndIsWrittenAgainOnceItIsRead) {
  Start({.patience = milliseconds(50)});
  pipe_.Fill();
  const int64_t before = Dropped(LogDrop::kOutput);
  const auto begin = steady_clock::now();
  for (int i = 0; i < 1000; ++i) log_->info("lost {}", i);
  const auto took = steady_clock::now() - begin;
  EXPECT_GE(took, milliseconds(50)) << "the first waits";
  EXPECT_LT(took, seconds(10)) << "the others do not: that would be 50 s";
  EXPECT_GE(Dropped(LogDrop::kOutput) - before, 1000) << "of the whole process";

  pipe_.Read();
  log_->info("back");
  log_->info("again");
  EXPECT_EQ(pipe_.Read(), "lines left out: 1000\nback\nagain\n");
}

TEST_F(LogSinkTest, FlushTellsOfLinesLeftOut) {
  Start({.patience = milliseconds(1)});
  pipe_.Fill();
  log_->info("lost");
  log_->flush();
  pipe_.Read();
  log_->flush();
  log_->flush();
  EXPECT_EQ(pipe_.Read(), "lines left out: 1\n");
}

TEST_F(LogSinkTest, LinesLostOnTheWayAreToldOfAndCounted) {
  int64_t lost = 0;
  Start({.lost = [&lost] { return lost; }});
  const int64_t before = Dropped(LogDrop::kQueue);
  log_->info("one");
  lost = 5;
  log_->info("two");
  log_->info("three");
  EXPECT_EQ(pipe_.Read(), "one\nlines left out: 5\ntwo\nthree\n");
  EXPECT_EQ(Dropped(LogDrop::kQueue) - before, 5);
}

TEST_F(LogSinkTest, AfterItsEndNoLineWaits) {
  Start({.patience = hours(1)});
  pipe_.Fill();
  sink_->EndBy(steady_clock::now() + milliseconds(20));
  const auto begin = steady_clock::now();
  for (int i = 0; i < 100; ++i) log_->info("lost");
  EXPECT_LT(steady_clock::now() - begin, seconds(10));
}

TEST_F(LogSinkTest, LongLineIsCutToOneWriteOfAPipe) {
  Start({});
  log_->info(std::string(2 * PIPE_BUF, 'x'));
  const std::string line = pipe_.Read();
  EXPECT_EQ(line.size(), static_cast<size_t>(PIPE_BUF));
  EXPECT_THAT(line, EndsWith("x...\n"));
}

TEST_F(LogSinkTest, PipeWithoutAReaderLosesLinesAndNothingElse) {
  signal(SIGPIPE, SIG_IGN);
  Start({});
  pipe_.CloseReader();
  const int64_t before = Dropped(LogDrop::kOutput);
  for (int i = 0; i < 10; ++i) log_->info("lost");
  EXPECT_EQ(Dropped(LogDrop::kOutput) - before, 10);
}

TEST_F(LogSinkTest, SharedDescriptorStaysABlockingOne) {
  Start({.patience = milliseconds(1)});
  pipe_.Fill();
  log_->info("lost");
  EXPECT_EQ(fcntl(pipe_.fd(), F_GETFL) & O_NONBLOCK, 0);
}

}  // namespace
}  // namespace rope::server
