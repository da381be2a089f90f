#include "server/telemetry/process.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace rope::server {
namespace {

using ::testing::Optional;

// A temporary cgroup folder.
class ProcessorsTest : public ::testing::Test {
 protected:
  ProcessorsTest() { std::filesystem::create_directories(root_ + "/cpu"); }

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(root_ + "/" + name) << text;
  }
  void WriteV1(const std::string& quota, const std::string& period) const {
    Write("cpu/cpu.cfs_quota_us", quota);
    Write("cpu/cpu.cfs_period_us", period);
  }

  const std::string root_ = rope::testing::TemporaryFolder();
  const int unbounded_ = ProcessorCount("/nonexistent");
};

TEST(CpuMaxTest, QuotaOverPeriod) {
  EXPECT_THAT(ParseCpuMax("150000 100000\n"), Optional(1.5));
  EXPECT_THAT(ParseCpuMax("50000 100000"), Optional(0.5));
}

TEST(CpuMaxTest, NoBoundWithoutAQuota) {
  for (const char* text :
       {"max 100000\n", "", "100000", "a b", "0 100000", "-1 100000", "100000 0", "1 2 3"}) {
    EXPECT_THAT(ParseCpuMax(text), Eq(std::nullopt)) << text;
  }
}

TEST(CfsQuotaTest, MinusOneIsNoBound) {
  EXPECT_THAT(ParseCfsQuota("-1\n", "100000\n"), Eq(std::nullopt));
  EXPECT_THAT(ParseCfsQuota("200000\n", "100000\n"), Optional(2.0));
}

TEST_F(ProcessorsTest, WithoutFilesTheAffinityCounts) {
  EXPECT_GE(unbounded_, 1);
  EXPECT_EQ(ProcessorCount(root_), unbounded_);
}

TEST_F(ProcessorsTest, VersionTwoBounds) {
  Write("cpu.max", "100000 100000\n");
  EXPECT_EQ(ProcessorCount(root_), 1);
  Write("cpu.max", "max 100000\n");
  EXPECT_EQ(ProcessorCount(root_), unbounded_);
}

TEST_F(ProcessorsTest, VersionOneBounds) {
  WriteV1("100000\n", "100000\n");
  EXPECT_EQ(ProcessorCount(root_), 1);
  WriteV1("-1\n", "100000\n");
  EXPECT_EQ(ProcessorCount(root_), unbounded_);
}

TEST_F(ProcessorsTest, PartsOfAProcessorAreOneAndHugeQuotasAreTheAffinity) {
  Write("cpu.max", "1000 100000\n");
  EXPECT_EQ(ProcessorCount(root_), 1);
  Write("cpu.max", "1e300 1\n");
  EXPECT_EQ(ProcessorCount(root_), unbounded_);
}

// A folder with the files of /proc.
class ProcessStatisticsTest : public ::testing::Test {
 protected:
  ProcessStatisticsTest() {
    std::filesystem::create_directories(root_ + "/self/fd");
    Write("/stat", "cpu  1 2 3\nbtime 1700000000\nprocesses 5\n");
  }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(root_ + name) << text;
  }

  const std::string root_ = rope::testing::TemporaryFolder();
};

TEST_F(ProcessStatisticsTest, FieldsAreThoseOfProc5WhateverTheProgramsName) {
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  Write("/self/stat",
        "7 (a b) c) S 4 5 6 7 8 9 10 11 12 13 250 50 16 17 18 19 20 21 1000 23 300 25 26\n");
  for (const char* fd : {"/self/fd/0", "/self/fd/1", "/self/fd/2"}) Write(fd, "");
  const auto statistics = ReadProcessStatistics(root_);
  ASSERT_TRUE(statistics.has_value());
  EXPECT_DOUBLE_EQ(statistics->cpu_seconds, 300 / ticks);
  EXPECT_DOUBLE_EQ(statistics->start_time_seconds, 1700000000 + 1000 / ticks);
  EXPECT_EQ(statistics->resident_bytes, 300 * sysconf(_SC_PAGESIZE));
  EXPECT_EQ(statistics->open_fds, 3);
}

TEST_F(ProcessStatisticsTest, WhatIsNotProcGivesNothing) {
  EXPECT_THAT(ReadProcessStatistics("/nowhere"), Eq(std::nullopt));
  for (const char* stat : {"", "7 (name", "7 (name) S 4 5", "7 (name) S a b c"}) {
    Write("/self/stat", stat);
    EXPECT_THAT(ReadProcessStatistics(root_), Eq(std::nullopt)) << stat;
  }
}

TEST(ReadProcessStatisticsTest, ThisProcessHasMemoryAndFiles) {
  const auto statistics = ReadProcessStatistics();
  if (!statistics.has_value()) GTEST_SKIP() << "this system has no Linux /proc";
  EXPECT_GT(statistics->resident_bytes, 1 << 20);
  EXPECT_GE(statistics->open_fds, 3);
  EXPECT_GT(statistics->start_time_seconds, 1e9);
}

}  // namespace
}  // namespace rope::server
