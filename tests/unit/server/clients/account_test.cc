// What an owner has of each resource, the limits of all, and buffers of results.
#include "server/clients/account.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "server/clients/buffer_pool.h"
#include "server/clients/limits.h"
#include "server/error.h"
#include "server/limits.h"
#include "tests/support/fake_clock.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"

namespace rope::server {
namespace {

using limits::kGiB;
using limits::kMiB;
using ::rope::testing::FakeClock;

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

TEST(BudgetTest, AmountThatWouldWrapIsRefused) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  Budget budget(10);
  EXPECT_TRUE(budget.TryAcquire(5));
  EXPECT_FALSE(budget.TryAcquire(kMost));
  EXPECT_FALSE(budget.TryAcquire(kMost - 4));
  EXPECT_EQ(budget.held(), 5);
}

TEST(BudgetTest, ThreadsNeverHoldMoreThanThereIs) {
  constexpr int64_t kMax = 3;
  Budget budget(kMax);
  std::atomic<int64_t> held = 0;
  std::atomic<int> too_many = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20000; ++round) {
        if (!budget.TryAcquire(1)) continue;
        too_many += held.fetch_add(1) >= kMax ? 1 : 0;
        held.fetch_sub(1);
        budget.Give(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(too_many, 0);
  EXPECT_EQ(budget.held(), 0);
}

class AccountTest : public ::testing::Test {
 protected:
  AccountTest() : AccountTest({.connections = 4, .requests = 4, .request_bytes = 100}) {}
  explicit AccountTest(const Accounts::Budgets& budgets) : accounts_(budgets, clock_) {}

  absl::StatusOr<Permit> Admit(const std::shared_ptr<Account>& account, int64_t bytes) {
    Permit permit;
    const absl::Status status = permit.Admit(*account, bytes, "request");
    if (!status.ok()) return status;
    return permit;
  }
  int64_t bytes() const { return accounts_.held(Resource::kRequestBytes); }
  int64_t requests() const { return accounts_.held(Resource::kRequests); }

  FakeClock clock_;
  Accounts accounts_;
  const std::shared_ptr<Account> one_ = accounts_.Of("uid:1");
  const std::shared_ptr<Account> two_ = accounts_.Of("uid:2");
};

TEST_F(AccountTest, OwnerHasOneAccountWhileAnybodyHoldsIt) {
  EXPECT_EQ(accounts_.Of("uid:1"), one_);
  EXPECT_NE(one_, two_);
  auto third = accounts_.Of("uid:3");
  third->SetLimits(0, 0);
  EXPECT_THAT(Admit(accounts_.Of("uid:3"), 1), IsExhausted("queue"));
  third.reset();
  EXPECT_THAT(Admit(accounts_.Of("uid:3"), 1), IsOk()) << "it is a new one";
}

TEST_F(AccountTest, LoneOwnerHasTheWholeServer) {
  const auto first = Admit(one_, 60);
  const auto second = Admit(one_, 40);
  EXPECT_THAT(first, IsOk());
  EXPECT_THAT(second, IsOk());
  EXPECT_EQ(requests(), 2);
  EXPECT_EQ(bytes(), 100);
  const auto refused = Admit(one_, 1);
  EXPECT_THAT(refused, IsExhausted("request: got 1 bytes beside 100 of all clients, want at most "
                                   "100 (--memory_bytes)"));
  EXPECT_EQ(proto::PartsOf(refused.status()).retry_delay_ms, limits::kRetryDelayMs);
  EXPECT_EQ(requests(), 2) << "a refused request has no place";
  EXPECT_EQ(accounts_.refusals(Resource::kRequestBytes).full, 1);
}

TEST_F(AccountTest, OwnerHasHalfWhileAnotherAsks) {
  EXPECT_THAT(Admit(one_, 1), IsOk());
  EXPECT_THAT(Admit(two_, 1), IsOk());
  const auto first = Admit(one_, 50);
  EXPECT_THAT(first, IsOk());
  const auto refused = Admit(one_, 1);
  EXPECT_THAT(refused, IsExhausted("request: got 1 bytes beside 50 of uid:1, want at most 50"));
  EXPECT_GT(proto::PartsOf(refused.status()).retry_delay_ms, 0);
  EXPECT_EQ(accounts_.refusals(Resource::kRequestBytes).owner_share, 1);
  EXPECT_THAT(Admit(two_, 50), IsOk());
}

TEST_F(AccountTest, OwnerHasHalfOfTheRequestsUntilNobodyElseHasAskedForASecond) {
  EXPECT_THAT(Admit(two_, 1), IsOk());
  const auto first = Admit(one_, 1);
  const auto second = Admit(one_, 1);
  EXPECT_THAT(Admit(one_, 1), IsExhausted("queue: got request 3 of uid:1, want at most 2"));
  EXPECT_EQ(accounts_.refusals(Resource::kRequests).owner_share, 1);
  clock_.Advance(Accounts::kSharedFor);
  const auto third = Admit(one_, 1);
  EXPECT_THAT(third, IsOk());
  EXPECT_THAT(Admit(two_, 1), IsOk());
  EXPECT_THAT(Admit(one_, 1), IsExhausted("queue: got request 4 of uid:1, want at most 2"));
}

TEST_F(AccountTest, PlacesLastUntilTheirLastCopyAndAlwaysLeaveHalf) {
  auto first = TakePlace(one_, Resource::kConnections);
  ASSERT_THAT(first, IsOk());
  ASSERT_OK(second, TakePlace(one_, Resource::kConnections));
  EXPECT_THAT(TakePlace(one_, Resource::kConnections),
              IsExhausted("max_connections: got connection 3 of uid:1, want at most 2"));
  const Place copy = *first;
  *first = nullptr;
  EXPECT_EQ(accounts_.held(Resource::kConnections), 2);
}

TEST_F(AccountTest, PermitGrowsAndKeepsTheReply) {
  auto permit = Admit(one_, 70);
  ASSERT_THAT(permit, IsOk());
  EXPECT_THAT(permit->Grow(30, "rows"), IsOk());
  const absl::Status refused = permit->Grow(1, "rows.cos");
  EXPECT_THAT(refused, IsExhausted("rows.cos: got 1 bytes to hold, want at most 0 for uid:1"));
  EXPECT_EQ(proto::PartsOf(refused).retry_delay_ms, 0) << "alone it is too large";
  EXPECT_EQ(permit->bytes(), 100);
  permit->KeepReply(5);
  EXPECT_EQ(bytes(), 5);
  EXPECT_EQ(requests(), 0);
  EXPECT_THAT(Admit(one_, 95), IsOk());
  *permit = Permit();
  EXPECT_EQ(bytes(), 0);
  EXPECT_EQ(requests(), 0);
}

TEST_F(AccountTest, PermitIsAdmittedOnce) {
  Permit permit;
  EXPECT_THAT(permit.Admit(*one_, 101, "reply"),
              IsExhausted("reply: got 101 bytes to hold, want at most 100 for uid:1"));
  EXPECT_EQ(accounts_.refusals(Resource::kRequestBytes).too_large, 1);
  EXPECT_FALSE(permit.admitted());
  EXPECT_EQ(requests(), 0);
  EXPECT_THAT(permit.Admit(*one_, 20, "request"), IsOk());
  EXPECT_THAT(permit.Admit(*one_, 30, "reply"), IsOk());
  EXPECT_EQ(requests(), 1);
  EXPECT_EQ(bytes(), 50);
}

TEST_F(AccountTest, LimitsOfAnOwnerHoldBesideThoseOfAll) {
  one_->SetLimits(2, 60);
  auto first = Admit(one_, 40);
  ASSERT_THAT(first, IsOk());
  const auto later = Admit(one_, 21);
  EXPECT_THAT(later, IsExhausted("request: got 21 bytes beside 40 of uid:1, want at most 60"));
  EXPECT_GT(proto::PartsOf(later.status()).retry_delay_ms, 0);
  EXPECT_EQ(proto::PartsOf(Admit(one_, 61).status()).retry_delay_ms, 0) << "waiting does not help";
  const auto second = Admit(one_, 20);
  EXPECT_THAT(second, IsOk());
  EXPECT_THAT(Admit(one_, 0), IsExhausted("queue: got request 3 of uid:1, want at most 2"));
  one_->SetLimits(0, 0);
  const auto never = Admit(one_, 1);
  EXPECT_THAT(never, IsExhausted("queue: got 1 request, want at most 0 for uid:1"));
  EXPECT_EQ(proto::PartsOf(never.status()).retry_delay_ms, 0);
}

TEST(BufferPoolTest, MemoryIsReused) {
  BufferPool pool(1 << 20);
  PooledBuffer first = pool.Allocate(5000);
  char* const data = first.data();
  EXPECT_EQ(pool.kept_bytes(), 0);
  first = PooledBuffer();
  EXPECT_EQ(pool.kept_bytes(), 8192);
  const PooledBuffer second = pool.Allocate(8192);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(pool.kept_bytes(), 0);
}

TEST(BufferPoolTest, BuffersAreAtMostAnEighthLargerThanAsked) {
  int64_t before = 0;
  for (int64_t size = 1; size < 100 << 20; size += size / 13 + 1000) {
    BufferPool pool(int64_t{1} << 30);
    { const PooledBuffer buffer = pool.Allocate(size); }
    const int64_t used = pool.kept_bytes();
    EXPECT_GE(used, size);
    EXPECT_LE(used, size + size / 8 + 4096) << size;
    EXPECT_GE(used, before) << size;
    before = used;
  }
}

int64_t PagesIn(const PooledBuffer& buffer) {
  std::vector<unsigned char> in(static_cast<size_t>(buffer.size() / 4096));
  EXPECT_EQ(mincore(buffer.data(), static_cast<size_t>(buffer.size()), in.data()), 0);
  return std::count_if(in.begin(), in.end(), [](unsigned char page) { return (page & 1) != 0; });
}

TEST(BufferPoolTest, PagesOfALargeBufferComeAsItIsFilled) {
  BufferPool pool(int64_t{64} << 20);
  constexpr int64_t kBytes = 2 * BufferPool::kPopulatedBytes;
  PooledBuffer small = pool.Allocate(BufferPool::kPopulatedBytes);
  EXPECT_EQ(PagesIn(small), BufferPool::kPopulatedBytes / 4096);
  {
    PooledBuffer buffer = pool.Allocate(kBytes);
    EXPECT_EQ(PagesIn(buffer), 0);
    buffer.Populate(10'000);
    EXPECT_EQ(PagesIn(buffer), 3);
    buffer.Populate(5'000);
    EXPECT_EQ(PagesIn(buffer), 3);
    buffer.Populate(kBytes);
    EXPECT_EQ(PagesIn(buffer), kBytes / 4096);
  }
  EXPECT_EQ(PagesIn(pool.Allocate(kBytes)), kBytes / 4096) << "it is reused";
}

TEST(BufferPoolTest, EveryByteIsOursAndAligned) {
  BufferPool pool(0);
  for (const int64_t size : {1, 63, 4095, 4096, 4097, 100000, 1 << 20}) {
    const PooledBuffer buffer = pool.Allocate(size);
    EXPECT_EQ(buffer.size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0U);
    std::memset(buffer.data(), 1, static_cast<size_t>(size));
  }
}

TEST(BufferPoolTest, KeepsNoMoreThanItsCap) {
  BufferPool pool(8192);
  {
    const PooledBuffer a = pool.Allocate(4096);
    const PooledBuffer b = pool.Allocate(4096);
    const PooledBuffer c = pool.Allocate(4096);
    const PooledBuffer d = pool.Allocate(1 << 20);
  }
  EXPECT_EQ(pool.kept_bytes(), 8192);
}

TEST(BufferPoolTest, SizeZeroTakesNothing) {
  BufferPool pool(1 << 20);
  { const PooledBuffer empty = pool.Allocate(0); }
  EXPECT_EQ(pool.kept_bytes(), 0);
  EXPECT_EQ(pool.Allocate(0).data(), nullptr);
}

TEST(BufferPoolTest, BufferOutlivesThePool) {
  std::optional<BufferPool> pool(1 << 20);
  PooledBuffer buffer = pool->Allocate(4096);
  pool.reset();
  std::memset(buffer.data(), 1, 4096);
  PooledBuffer moved = std::move(buffer);
  EXPECT_EQ(moved.data()[4095], 1);
}

}  // namespace
}  // namespace rope::server
