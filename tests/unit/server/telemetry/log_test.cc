#include "server/telemetry/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/ipc/file_descriptor.h"
#include "tests/support/fake_clock.h"
#include "tests/support/matchers.h"

namespace rope::server {
namespace {

// A small pipe as the output of a log, which a test fills and reads. One thread writes, one reads.
class LogPipe {
 public:
  // A pipe of `bytes`: it has room for at least as many lines as that has pages.
  explicit LogPipe(int bytes = 1 << 14) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    read_ = proto::FileDescriptor(ends[0]);
    write_ = proto::FileDescriptor(ends[1]);
    EXPECT_GE(fcntl(write_.get(), F_SETPIPE_SZ, bytes), bytes);
  }

  int fd() const { return write_.get(); }

  // Writes until the pipe is full.
  void Fill() const {
    const std::string page(4096, '-');
    pollfd room = {write_.get(), POLLOUT, 0};
    while (poll(&room, 1, 0) == 1) {
      ASSERT_EQ(write(write_.get(), page.data(), page.size()), ssize_t{4096});
    }
  }
  // Returns the pipe's contents.
  std::string Read() const {
    std::string text;
    char buffer[4096];
    pollfd some = {read_.get(), POLLIN, 0};
    while (poll(&some, 1, 0) == 1) {
      const ssize_t count = read(read_.get(), buffer, sizeof(buffer));
      if (count <= 0) break;
      text.append(buffer, static_cast<size_t>(count));
    }
    return text;
  }
  void CloseReader() { read_ = proto::FileDescriptor(); }

 private:
  proto::FileDescriptor read_;
  proto::FileDescriptor write_;
};

TEST(TraceIdTest, HeaderIsReadAsW3CSays) {
  const std::string trace = "0af7651916cd43dd8448eb211c80319c";
  const std::string ids = trace + "-b7ad6b7169203331";
  const std::pair<std::string, std::string> cases[] = {
      {"00-" + ids + "-01", trace},
      {"00-" + ids + "-00", trace},
      {"00-" + ids + "-ff", trace},
      // Of a later version the known fields count.
      {"01-" + ids + "-01", trace},
      {"cc-" + ids + "-01-what-follows", trace},
      {"cc-" + ids + "-01-", trace},
      {"cc-" + ids + "-01.what-follows", ""},
      {"cc-" + ids + "-0", ""},
      {"00-" + ids + "-01-what-follows", ""},
      {"00-" + ids + "-01-", ""},
      {"ff-" + ids + "-01", ""},
      {"ff-" + ids + "-01-what-follows", ""},
      // Zeros are no ids.
      {"00-" + std::string(32, '0') + "-b7ad6b7169203331-01", ""},
      {"00-" + trace + "-" + std::string(16, '0') + "-01", ""},
      {"00-" + std::string(31, '0') + "1-" + std::string(15, '0') + "1-01",
       std::string(31, '0') + "1"},
      {"00-1" + std::string(31, '0') + "-1" + std::string(15, '0') + "-00",
       "1" + std::string(31, '0')},
      // Other digits, dashes and lengths.
      {"00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", ""},
      {"00-" + trace + "-B7ad6b7169203331-01", ""},
      {"0A-" + ids + "-01", ""},
      {"00-" + ids + "-0A", ""},
      {"0g-" + ids + "-01", ""},
      {"00-" + ids + "-0x", ""},
      {"00_" + ids + "-01", ""},
      {"00-" + trace + "_b7ad6b7169203331-01", ""},
      {"00-" + ids + "_01", ""},
      {"00-" + trace + "-+7ad6b7169203331-01", ""},
      {"0-" + ids + "-01", ""},
      {" 00-" + ids + "-01", ""},
      {"00-" + ids + "-01 ", ""},
      {"00-" + ids + "-1", ""},
      {"00-" + ids, ""},
      {"00-" + ids.substr(1) + "-01", ""},
      {"00", ""},
      {"", ""},
  };
  for (const auto& [header, expected] : cases) EXPECT_EQ(TraceIdOf(header), expected) << header;
}

TEST(QuotedTest, ControlCharactersAreEscaped) {
  EXPECT_EQ(Quoted("a\nb\r\tc"), R"("a\nb\x0d\x09c")");
  EXPECT_EQ(Quoted("\x1b[31mred"), R"("\x1b[31mred")");
  EXPECT_EQ(Quoted(absl::string_view("\0\x7f", 2)), R"("\x00\x7f")");
}

TEST(QuotedTest, ReadableUnicodeStaysAndWhatMovesOrHidesTextIsEscaped) {
  EXPECT_EQ(Quoted("\u00e9\u20ac\U0001F600"), "\"\u00e9\u20ac\U0001F600\"");
  EXPECT_EQ(Quoted("a\u2028b"), R"("a\xe2\x80\xa8b")") << "line separator";
  EXPECT_EQ(Quoted("\u202ea\u202c"), R"("\xe2\x80\xaea\xe2\x80\xac")") << "direction mark";
  EXPECT_EQ(Quoted("\u200b"), R"("\xe2\x80\x8b")") << "zero width";
  EXPECT_EQ(Quoted("\xc2\x9b"), R"("\xc2\x9b")") << "a terminal's escape";
}

TEST(QuotedTest, WhatIsNoUtf8IsEscapedByteByByte) {
  EXPECT_EQ(Quoted("\xff"), R"("\xff")");
  EXPECT_EQ(Quoted("\x80"), R"("\x80")") << "no lead byte";
  EXPECT_EQ(Quoted("\xe2\x82"), R"("\xe2\x82")") << "cut off";
  EXPECT_EQ(Quoted("\xc3("), R"("\xc3(")");
  EXPECT_EQ(Quoted("\xc0\xaf"), R"("\xc0\xaf")") << "overlong form";
  EXPECT_EQ(Quoted("\xed\xa0\x80"), R"("\xed\xa0\x80")") << "surrogate";
  EXPECT_EQ(Quoted("\xf4\x90\x80\x80"), R"("\xf4\x90\x80\x80")") << "beyond the last character";
}

TEST(LogLineTest, WordsAndFieldsInBothFormats) {
  const std::string text = "a b=\"c\" \\ \n \x01 é";
  const struct {
    LogLine line;
    std::string logfmt;
    std::string json;
  } cases[] = {
      {LogLine(), "", R"("msg":"")"},
      {LogLine("drained"), "drained", R"("msg":"drained")"},
      {LogLine("audit: refused").Word("method", "Rotate").Text("peer", "uid:7").LeftOut(0),
       R"(audit: refused method=Rotate peer="uid:7")",
       R"("msg":"audit: refused","method":"Rotate","peer":"uid:7")"},
      {LogLine().Number("a", 1).Number("b", -2).Word("c", "3").LeftOut(7),
       "a=1 b=-2 c=3 left_out=7", R"("msg":"","a":1,"b":-2,"c":"3","left_out":7)"},
      {LogLine().Text("request", text), R"(request="a b=\"c\" \\ \n \x01 é")",
       R"("msg":"","request":"a b=\"c\" \\ \n \\x01 é")"},
      {LogLine().Word("model", "mine").Words("replaces the preset"),
       "model=mine replaces the preset", R"("msg":"replaces the preset","model":"mine")"},
      {LogLine("--listen: got A=b"), "--listen: got A=b", R"("msg":"--listen: got A=b")"},
      {LogLine("\xff"), "\xff", "\"msg\":\"\xEF\xBF\xBD\""},
  };
  for (const auto& [line, logfmt, json] : cases) {
    EXPECT_EQ(line.In(LogFormat::kLogfmt), logfmt);
    EXPECT_EQ(line.In(LogFormat::kJson), json);
  }
}

// Redirects the default logger into a string.
class LogLimitedTest : public ::testing::Test {
 protected:
  LogLimitedTest() {
    auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text_);
    sink->set_pattern("%v");
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", std::move(sink)));
  }
  ~LogLimitedTest() override { spdlog::set_default_logger(before_); }

  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
  std::ostringstream text_;
};

TEST_F(LogLimitedTest, LinesBelowTheLevelCountForNothing) {
  for (int64_t i = 0; i < 2 * limits::kLogBurstLines; ++i) {
    LogLimited(LogKind::kGrpc, spdlog::level::debug, LogLine("unseen"));
  }
  LogLimited(LogKind::kGrpc, spdlog::level::info, LogLine("seen"));
  EXPECT_EQ(text_.str(), "seen\n");
}

class LogLimiterTest : public ::testing::Test {
 protected:
  static constexpr size_t kKinds = 3;

  // The number of `lines` that are admitted at this instant.
  int64_t Admitted(int64_t lines, size_t kind = 0) {
    int64_t admitted = 0;
    for (int64_t i = 0; i < lines; ++i) admitted += limiter_.Admit(kind).has_value() ? 1 : 0;
    return admitted;
  }

  const absl::Duration token_ = absl::Seconds(1) / limits::kLogLinesPerSecond;
  testing::FakeClock clock_;
  LogLimiter limiter_{clock_, kKinds};
};

TEST_F(LogLimiterTest, LineThatPassesAfterOthersSaysHowManyWereLeftOut) {
  EXPECT_EQ(limiter_.Admit(0), 0);
  EXPECT_EQ(Admitted(limits::kLogBurstLines - 1 + 7), limits::kLogBurstLines - 1);
  clock_.Advance(2 * token_);
  EXPECT_EQ(limiter_.Admit(0), 7);
  EXPECT_EQ(limiter_.Admit(0), 0) << "dropped lines are reported once";
}

TEST_F(LogLimiterTest, FloodOfTenSecondsHasTheLinesOfTenSecondsAndABurst) {
  int64_t admitted = 0;
  for (int i = 0; i < 10'000; ++i) {
    admitted += Admitted(3);
    clock_.Advance(absl::Milliseconds(1));
  }
  EXPECT_EQ(admitted, limits::kLogBurstLines + 10 * limits::kLogLinesPerSecond - 1);
}

TEST_F(LogLimiterTest, BucketIsFullAgainAfterAQuietTimeAndHoldsNoMore) {
  Admitted(1000);
  clock_.Advance(absl::Hours(1));
  EXPECT_EQ(Admitted(1000), limits::kLogBurstLines);
}

TEST_F(LogLimiterTest, KindsHaveBucketsOfTheirOwn) {
  Admitted(1000, 0);
  EXPECT_EQ(Admitted(1000, 1), limits::kLogBurstLines);
  EXPECT_EQ(Admitted(1000, kKinds - 1), limits::kLogBurstLines);
}

TEST_F(LogLimiterTest, EveryLineOfManyThreadsIsAdmittedOrCountedAsLeftOut) {
  constexpr int kThreads = 4;
  constexpr int kEach = 10'000;
  const int64_t dropped_before = LogDrops()[static_cast<size_t>(LogDrop::kRateLimit)];
  std::atomic<int64_t> admitted = 0;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] { admitted += Admitted(kEach); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(admitted.load(), limits::kLogBurstLines);
  constexpr int64_t kLeftOut = kThreads * kEach - limits::kLogBurstLines;
  EXPECT_EQ(LogDrops()[static_cast<size_t>(LogDrop::kRateLimit)] - dropped_before, kLeftOut);
  clock_.Advance(token_);
  EXPECT_EQ(limiter_.Admit(0), kLeftOut);
}

using std::chrono::seconds;
using std::chrono::steady_clock;

// The time that a busy machine may need for an action that takes at most a second.
constexpr seconds kBounded{10};

// Lines that outputs of this process have not written.
int64_t Dropped() {
  return LogDrops()[static_cast<size_t>(LogDrop::kOutput)];
}

TEST(LogOutputTest, LinesAreWrittenInTheirOrderBeforeItEnds) {
  const LogPipe pipe(1 << 16);
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

TEST(LogOutputTest, InJsonEveryLineIsAnObjectHoweverLong) {
  const LogPipe pipe(1 << 16);
  {
    const LogOutput output(pipe.fd(), LogFormat::kJson);
    output.logger()->warn(LogLine().Text("request", "a\"b").In(LogFormat::kJson));
    const LogLine line = LogLine().Text("x", std::string(10'000, '\x01'));
    output.logger()->info(line.In(LogFormat::kJson));
  }
  std::istringstream text(pipe.Read());
  std::string line;
  std::getline(text, line);
  const auto first = nlohmann::json::parse(line);
  EXPECT_EQ(first["level"], "warning");
  EXPECT_EQ(first["request"], "a\"b");
  EXPECT_THAT(first["time"].get<std::string>(), MatchesRegex("[0-9-]+T[0-9:.]+[+-][0-9:]+"));
  std::getline(text, line);
  EXPECT_LT(line.size(), PIPE_BUF);
  EXPECT_EQ(nlohmann::json::parse(line)["level"], "info");
}

TEST(LogOutputTest, LinesThatAFullPipeDidNotTakeAreReported) {
  const LogPipe pipe;
  pipe.Fill();
  constexpr int64_t kLines = limits::kLogQueueLines + 100;
  const LogOutput output(pipe.fd());
  for (int64_t i = 0; i < kLines; ++i) output.logger()->info("line");
  output.logger()->info("last");
  std::string text;
  while (text.find("info last\n") == std::string::npos) text += pipe.Read();
  int64_t lines = 0;
  int64_t left_out = 0;
  std::istringstream in(text);
  const std::string report = "warning lines left out: ";
  for (std::string line; std::getline(in, line);) {
    if (line.ends_with("info line")) ++lines;
    const size_t at = line.find(report);
    if (at != std::string::npos) left_out += std::stoll(line.substr(at + report.size()));
  }
  EXPECT_GE(left_out, 100);
  EXPECT_EQ(lines + left_out, kLines);
}

TEST(LogOutputTest, LongLineIsCutToOneWriteOfAPipe) {
  const LogPipe pipe;
  { LogOutput(pipe.fd()).logger()->info(std::string(2 * PIPE_BUF, 'x')); }
  const std::string line = pipe.Read();
  EXPECT_EQ(line.size(), static_cast<size_t>(PIPE_BUF));
  EXPECT_THAT(line, EndsWith("x...\n"));
}

TEST(LogOutputTest, PipeWithoutAReaderLosesLinesAndNothingElse) {
  signal(SIGPIPE, SIG_IGN);
  LogPipe pipe;
  pipe.CloseReader();
  const int64_t before = Dropped();
  {
    const LogOutput output(pipe.fd());
    for (int i = 0; i < 10; ++i) output.logger()->info("lost");
  }
  EXPECT_EQ(Dropped() - before, 10);
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
  const LogPipe pipe;
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
