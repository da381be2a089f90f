#include "server/telemetry/log_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <sstream>

#include "server/limits.h"

namespace rope::server {
namespace {

using ::testing::ContainsRegex;

TEST(QuotedTest, PlainTextIsQuotedAndSpacesAndEqualsSignsStay) {
  EXPECT_EQ(Quoted(""), R"("")");
  EXPECT_EQ(Quoted("4f2a-1"), R"("4f2a-1")");
  EXPECT_EQ(Quoted("a b code=OK"), R"("a b code=OK")");
}

TEST(QuotedTest, TextCannotEndItsOwnField) {
  EXPECT_EQ(Quoted(R"(" code=OK x=")"), R"("\" code=OK x=\"")");
  EXPECT_EQ(Quoted(R"(\)"), R"("\\")");
  EXPECT_EQ(Quoted(R"(\")"), R"("\\\"")");
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

TEST(LeftOutTest, IsSaidWhereThereIsSomething) {
  EXPECT_EQ(LeftOut(0), "");
  EXPECT_EQ(LeftOut(7), " left_out=7");
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

  int64_t Lines() const {
    const std::string text = text_.str();
    return std::count(text.begin(), text.end(), '\n');
  }

  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
  std::ostringstream text_;
};

TEST_F(LogLimitedTest, KindThatIsRepeatedWithoutEndIsLimitedAndSaysSo) {
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [begin] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  while (text_.str().find("left_out=") == std::string::npos && seconds() < 60) {
    for (int i = 0; i < 100; ++i) {
      LogLimited(LogKind::kRing, spdlog::level::info, "ring: {} of {}", i, 100);
    }
  }
  const double lines_max = limits::kLogBurstLines + seconds() * limits::kLogLinesPerSecond + 1;
  EXPECT_THAT(text_.str(), ContainsRegex("ring: [0-9]+ of 100 left_out=[0-9]+\n"));
  EXPECT_LE(static_cast<double>(Lines()), lines_max);
  const int64_t lines = Lines();
  LogLimited(LogKind::kProtobuf, spdlog::level::info, "protobuf");
  EXPECT_EQ(Lines(), lines + 1) << "another kind";
}

TEST_F(LogLimitedTest, LinesBelowTheLevelCountForNothing) {
  for (int64_t i = 0; i < 2 * limits::kLogBurstLines; ++i) {
    LogLimited(LogKind::kGrpc, spdlog::level::debug, "unseen");
  }
  LogLimited(LogKind::kGrpc, spdlog::level::info, "seen");
  EXPECT_EQ(text_.str(), "seen\n");
}

}  // namespace
}  // namespace rope::server
