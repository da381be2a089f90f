#include "server/telemetry/log_output.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "proto/ipc/file_descriptor.h"
#include "server/telemetry/log_drops.h"
#include "tests/support/log_pipe.h"

namespace rope::server {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::MatchesRegex;

// The time that a busy machine may need for an action that takes at most a second.
constexpr seconds kBounded{10};

int64_t Dropped() {
  const auto drops = LogDrops();
  return drops[static_cast<size_t>(LogDrop::kQueue)] + drops[static_cast<size_t>(LogDrop::kOutput)];
}

TEST(LogOutputTest, LinesAreWrittenInTheirOrderBeforeItEnds) {
  const testing::LogPipe pipe(1 << 16);
  constexpr int kLines = 100;
  {
    const LogOutput output(pipe.fd());
    for (int i = 0; i < kLines; ++i) output.logger()->info("line {}.", i);
  }
  const std::string text = pipe.Read();
  size_t at = 0;
  for (int i = 0; i < kLines && at != std::string::npos; ++i) {
    at = text.find(" info line " + std::to_string(i) + ".\n", at);
  }
  EXPECT_NE(at, std::string::npos) << text;
  const std::string first = text.substr(0, text.find('\n'));
  EXPECT_THAT(first, MatchesRegex("[0-9-]+T[0-9:.]+[+-][0-9:]+ info line 0\\."));
}

TEST(LogOutputTest, PipeThatIsNeverReadHoldsUpNeitherLoggingNorTheEnd) {
  const testing::LogPipe pipe;
  pipe.Fill();
  constexpr int kLines = 10'000;
  const int64_t before = Dropped();
  const auto begin = steady_clock::now();
  {
    const LogOutput output(pipe.fd());
    for (int i = 0; i < kLines; ++i) output.logger()->info("line {}", i);
  }
  EXPECT_LT(steady_clock::now() - begin, kBounded);
  EXPECT_EQ(Dropped() - before, kLines);
}

TEST(LogOutputTest, LineAfterAFullPipeWasReadIsWrittenAndSaysHowManyWereNot) {
  const testing::LogPipe pipe;
  pipe.Fill();
  const int64_t before = Dropped();
  {
    const LogOutput output(pipe.fd());
    output.logger()->info("lost");
    while (Dropped() == before) sched_yield();
    pipe.Read();
    output.logger()->info("found");
  }
  EXPECT_THAT(pipe.Read(), MatchesRegex(".* warning lines left out: 1\n.* info found\n"));
}

// The other end of a terminal. It accepts some lines; then a write blocks, even if poll reported
// room.
TEST(LogOutputTest, TerminalThatIsNeverReadHoldsUpNeitherLoggingNorTheEnd) {
  const proto::FileDescriptor display(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(display.ok());
  ASSERT_EQ(grantpt(display.get()), 0);
  ASSERT_EQ(unlockpt(display.get()), 0);
  // Never closed: a thread that is blocked in a write uses it until the process ends.
  const int terminal = open(ptsname(display.get()), O_WRONLY | O_NOCTTY | O_CLOEXEC);
  ASSERT_GE(terminal, 0);
  const auto begin = steady_clock::now();
  {
    const LogOutput output(terminal);
    for (int i = 0; i < 1000; ++i) output.logger()->info(std::string(1000, 'x'));
  }
  EXPECT_LT(steady_clock::now() - begin, kBounded);
}

TEST(LogOutputTest, LoggerThatOutlivesItDoesNothing) {
  const testing::LogPipe pipe;
  std::optional<LogOutput> output(pipe.fd());
  const std::shared_ptr<spdlog::logger> logger = output->logger();
  output.reset();
  ::testing::internal::CaptureStderr();
  logger->info("late");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(pipe.Read(), "");
}

}  // namespace
}  // namespace rope::server
