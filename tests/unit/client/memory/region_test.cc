#include "client/memory/region.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/support/matchers.h"

namespace rope::client {
namespace {

const RegionIds::Clock::time_point kLongAgo;
RegionIds::Clock::time_point Late() {
  return RegionIds::Clock::now() + std::chrono::hours(1);
}

TEST(RegionIdsTest, RequestsTakeTheIdOfNow) {
  RegionIds ids(7);
  const RegionIds::Lease before = ids.Acquire();
  ids.Replace(8);
  EXPECT_EQ(*before, 7u);
  EXPECT_EQ(*ids.Acquire(), 8u);
  EXPECT_THAT(ids.replaced(), ElementsAre(7));
  ids.Replace(9);
  EXPECT_THAT(ids.replaced(), ElementsAre(7, 8));
  ids.Forget(7);
  EXPECT_THAT(ids.replaced(), ElementsAre(8));
}

TEST(RegionIdsTest, OnlyReplacedIdsAreWaitedFor) {
  RegionIds ids(7);
  RegionIds::Lease first = ids.Acquire();
  const RegionIds::Lease copy = first;
  EXPECT_TRUE(ids.AwaitGivenBack(kLongAgo));
  ids.Replace(8);
  const RegionIds::Lease second = ids.Acquire();
  EXPECT_FALSE(ids.AwaitGivenBack(kLongAgo));
  first.reset();
  EXPECT_FALSE(ids.AwaitGivenBack(kLongAgo)) << "a copy is left";
}

TEST(RegionIdsTest, LastLeaseWakesWhoWaits) {
  RegionIds ids(7);
  RegionIds::Lease first = ids.Acquire();
  RegionIds::Lease second = ids.Acquire();
  ids.Replace(8);
  std::atomic<int> left = 2;
  std::thread calls([&] {
    --left;
    first.reset();
    --left;
    second.reset();
  });
  EXPECT_TRUE(ids.AwaitGivenBack(Late()));
  EXPECT_EQ(left, 0);
  calls.join();
}

TEST(RegionIdsTest, LeaseMayOutliveTheIds) {
  RegionIds::Lease lease;
  {
    RegionIds ids(7);
    lease = ids.Acquire();
  }
  EXPECT_EQ(*lease, 7u);
}

TEST(RegionIdsTest, FencesTakeTurns) {
  RegionIds ids(7);
  {
    const auto turn = ids.TakeTurn(kLongAgo);
    EXPECT_TRUE(turn.has_value());
    EXPECT_FALSE(ids.TakeTurn(kLongAgo).has_value());
  }
  std::atomic<int> inside = 0;
  std::vector<std::thread> fences;
  for (int i = 0; i < 4; ++i) {
    fences.emplace_back([&] {
      for (int j = 0; j < 100; ++j) {
        const auto turn = ids.TakeTurn(Late());
        EXPECT_TRUE(turn.has_value());
        EXPECT_EQ(++inside, 1);
        --inside;
      }
    });
  }
  for (std::thread& fence : fences) fence.join();
  EXPECT_THAT(ids.replaced(), IsEmpty());
}

}  // namespace
}  // namespace rope::client
