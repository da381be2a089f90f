#include "server/memory/budget.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <thread>
#include <vector>

namespace rope::server {
namespace {

TEST(BudgetTest, AsMuchAsThereIsMayBeTaken) {
  Budget budget(10);
  EXPECT_TRUE(budget.TryAcquire(7));
  EXPECT_FALSE(budget.TryAcquire(4));
  EXPECT_TRUE(budget.TryAcquire(3));
  EXPECT_FALSE(budget.TryAcquire(1));
  EXPECT_TRUE(budget.TryAcquire(0));
  EXPECT_EQ(budget.held(), 10u);
  budget.Give(7);
  EXPECT_EQ(budget.held(), 3u);
  EXPECT_TRUE(budget.TryAcquire(7));
}

TEST(BudgetTest, AmountThatWouldWrapIsRefused) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  Budget budget(10);
  EXPECT_TRUE(budget.TryAcquire(5));
  EXPECT_FALSE(budget.TryAcquire(kMost));
  EXPECT_FALSE(budget.TryAcquire(kMost - 4));
  EXPECT_EQ(budget.held(), 5u);
}

TEST(BudgetTest, ThreadsNeverHoldMoreThanThereIs) {
  constexpr uint64_t kMax = 3;
  Budget budget(kMax);
  std::atomic<uint64_t> held = 0;
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
  EXPECT_EQ(budget.held(), 0u);
}

}  // namespace
}  // namespace rope::server
