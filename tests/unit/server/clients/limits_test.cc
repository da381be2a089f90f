#include "server/clients/limits.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/temporary_folder.h"

namespace rope::server {
namespace {

using limits::kGiB;
using limits::kMiB;

// Creates the files that the system would show.
class AvailableMemoryTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  int64_t Available() const { return AvailableMemory(root_ + "/cgroup", root_ + "/proc"); }

  const std::string root_ = rope::testing::TemporaryFolder() + "/" +
                            ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(AvailableMemoryTest, WithoutALimitItIsTheMachines) {
  EXPECT_GT(Available(), 100 * kMiB);
}

TEST_F(AvailableMemoryTest, LimitOfTheContainerCounts) {
  Write("/cgroup/memory.max", "67108864\n");
  EXPECT_EQ(Available(), 64 * kMiB);
}

TEST_F(AvailableMemoryTest, NoLimitIsSpelledMax) {
  Write("/cgroup/memory.max", "max\n");
  EXPECT_GT(Available(), 100 * kMiB);
}

TEST_F(AvailableMemoryTest, GroupThatTheProcessIsInCountsInVersionTwo) {
  Write("/proc/self/cgroup", "0::/rope\n");
  Write("/cgroup/rope/memory.max", "33554432\n");
  EXPECT_EQ(Available(), 32 * kMiB);
}

TEST_F(AvailableMemoryTest, GroupThatTheProcessIsInCountsInVersionOne) {
  Write("/proc/self/cgroup", "5:cpu:/other\n4:memory:/rope\n");
  Write("/cgroup/memory/rope/memory.limit_in_bytes", "16777216\n");
  Write("/cgroup/memory/other/memory.limit_in_bytes", "1\n");
  EXPECT_EQ(Available(), 16 * kMiB);
}

TEST(SharedMemoryTest, DefaultIsWhatTheServersMemoryLeavesAndHalfOfItOneSessions) {
  const struct {
    int64_t available, memory, shared, session;
  } machines[] = {
      {kGiB, DefaultMemoryBytes(kGiB), 256 * kMiB, 128 * kMiB},
      {24 * kGiB, DefaultMemoryBytes(24 * kGiB), 6 * kGiB, 3 * kGiB},
      {256 * kGiB, DefaultMemoryBytes(256 * kGiB), 16 * kGiB, 4 * kGiB},
      {kGiB, 512 * kMiB, 512 * kMiB, 256 * kMiB},
      {kGiB, 2 * kGiB, 0, 0},
  };
  for (const auto& machine : machines) {
    const int64_t shared = DefaultSharedMemoryBytes(machine.available, machine.memory);
    EXPECT_EQ(shared, machine.shared) << machine.available;
    EXPECT_EQ(DefaultSessionMemoryBytes(shared), machine.session) << machine.available;
  }
}

TEST(DivideMemoryTest, PartsTogetherLeaveRoom) {
  for (const int64_t bytes : {limits::kMemoryBytesMin, 768 * kMiB, 18 * kGiB, 1024 * kGiB}) {
    const MemoryShares shares = DivideMemory(bytes, {}, {});
    EXPECT_LT(shares.requests + shares.receive + shares.pool + shares.tables + shares.specs +
                  shares.prepared,
              bytes / 8 * 7);
    EXPECT_LE(4 * shares.message, shares.requests)
        << "a session has room for a message and its result";
  }
}

TEST(DivideMemoryTest, WhatTheOperatorSaysCounts) {
  const MemoryShares shares = DivideMemory(kGiB, 5 * kMiB, 7 * kMiB);
  EXPECT_EQ(shares.tables, 5 * kMiB);
  EXPECT_EQ(shares.message, 7 * kMiB);
}

TEST(DivideMemoryTest, LargeMachinesKeepTheDefaults) {
  const MemoryShares shares = DivideMemory(64 * kGiB, {}, {});
  EXPECT_EQ(shares.tables, limits::kTableCacheBytes);
  EXPECT_EQ(shares.message, limits::kMessageBytesMax);
  EXPECT_EQ(shares.pool, limits::kPooledBytesMax);
  EXPECT_EQ(shares.specs, limits::kSpecBytesMax);
  EXPECT_EQ(shares.prepared, limits::kPreparedBytesMax);
}

TEST(DivideMemoryTest, SmallOnesKeepSmallCaches) {
  const MemoryShares shares = DivideMemory(limits::kMemoryBytesMin, {}, {});
  EXPECT_EQ(shares.specs, 2 * kMiB);
  EXPECT_EQ(shares.prepared, kMiB);
}

}  // namespace
}  // namespace rope::server
