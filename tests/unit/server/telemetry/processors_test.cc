#include "server/telemetry/processors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_folder.h"

namespace rope::server {
namespace {

using ::testing::Eq;
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

}  // namespace
}  // namespace rope::server
