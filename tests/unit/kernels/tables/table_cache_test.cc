#include "kernels/tables/table_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <array>
#include <atomic>
#include <exception>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "proto/mutex.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/kernels/tables/table_rows.h"

namespace rope::kernels {
namespace {

using rope::testing::IsOk;
using rope::testing::StatusIs;
using ::testing::HasSubstr;

std::vector<int64_t> PositionsAround(std::initializer_list<int64_t> centres) {
  std::vector<int64_t> positions;
  constexpr int64_t kPositionMax = int64_t{1} << 30;
  for (const int64_t centre : centres) {
    for (int64_t i = std::max(centre - 70, -kPositionMax); i <= std::min(centre + 70, kPositionMax);
         ++i) {
      positions.push_back(i);
    }
  }
  return positions;
}

TEST(TableCacheTest, RowsAreRightAtEveryPosition) {
  TableCache cache(kLargeBudget);
  const std::vector<int64_t> positions =
      PositionsAround({0, 1000000, 1 << 24, 1000000000, int64_t{1} << 30, -1000000, -(1 << 30)});
  for (const double multiplier : {1.0, 1.1386294361119891, 0.25}) {
    for (const double theta : {10000.0, 500000.0, 1e7}) {
      const Frequencies frequencies = MakeFrequencies(theta, 64, multiplier);
      const TokenRows rows = Rows(cache, frequencies, positions);
      for (size_t i = 0; i < positions.size(); ++i) {
        ExpectExact(frequencies, positions[i], rows.rows[i]);
      }
    }
  }
}

TEST(TableCacheTest, FrequenciesAboveOneRadianAreRight) {
  TableCache cache(kLargeBudget);
  Frequencies frequencies = MakeFrequencies(0.001, 5);  // up to hundreds of radians per position
  const std::vector<int64_t> positions = PositionsAround({0, 100000});
  const TokenRows rows = Rows(cache, frequencies, positions);
  for (size_t i = 0; i < positions.size(); ++i) {
    ExpectExact(frequencies, positions[i], rows.rows[i]);
  }
}

TEST(TableCacheTest, PageIsBuiltOnceAndFoundAfterwards) {
  TableCache cache(kLargeBudget);
  const Frequencies frequencies = MakeFrequencies(10000, 8);
  const int64_t first[] = {1000000, 1000001};
  const int64_t second[] = {1000002};
  const TokenRows a = Rows(cache, frequencies, first);
  const TokenRows b = Rows(cache, frequencies, second);
  EXPECT_EQ(a.rows[0].page, b.rows[0].page);
  const TableCache::Statistics statistics = cache.statistics();
  EXPECT_EQ(statistics.misses, 1);
  EXPECT_EQ(statistics.builds, 1);
  EXPECT_EQ(statistics.hits, 1);
  EXPECT_EQ(statistics.tables, 1);
  EXPECT_EQ(statistics.pages, 1);
  EXPECT_GT(statistics.bytes, kPageRows * 2 * 8 * 4);
  EXPECT_LT(statistics.bytes, kPageRows * 2 * 8 * 4 + 2000);
}

TEST(TableCacheTest, ManyPagesOfWhichSomeAreThere) {
  TableCache cache(kLargeBudget);
  const Frequencies frequencies = MakeFrequencies(10000, 4);
  const int64_t there[] = {0, 3 * kPageRows, 70 * kPageRows, 199 * kPageRows};
  Rows(cache, frequencies, there);
  std::vector<int64_t> positions;
  for (int64_t position = -kPageRows; position < 200 * kPageRows; ++position) {
    positions.push_back(position);
  }
  positions.push_back(5);  // on a page that occurs before
  const TokenRows rows = Rows(cache, frequencies, positions);
  for (size_t i = 0; i < positions.size(); ++i) {
    ExpectExact(frequencies, positions[i], rows.rows[i]);
  }
  EXPECT_EQ(cache.statistics().hits, 5);
  EXPECT_EQ(cache.statistics().misses, 4 + 197);
  EXPECT_EQ(cache.statistics().pages, 201);
}

TEST(TableCacheTest, NoPositionsLeaveNothing) {
  TableCache cache(kLargeBudget);
  Rows(cache, MakeFrequencies(10000, 4), {});
  EXPECT_EQ(cache.statistics().bytes, 0);
}

TEST(TableCacheTest, EqualKeysShareATableAndOthersDoNot) {
  TableCache cache(kLargeBudget);
  const int64_t position = 5;
  const TokenRows a = Rows(cache, MakeFrequencies(10000, 8), {&position, 1});
  const TokenRows same = Rows(cache, MakeFrequencies(10000, 8), {&position, 1});
  const TokenRows theta = Rows(cache, MakeFrequencies(10001, 8), {&position, 1});
  const TokenRows factor = Rows(cache, MakeFrequencies(10000, 8, 2), {&position, 1});
  EXPECT_EQ(a.rows[0].page, same.rows[0].page);
  EXPECT_NE(a.rows[0].page, theta.rows[0].page);
  EXPECT_NE(a.rows[0].page, factor.rows[0].page);
  EXPECT_EQ(cache.statistics().tables, 3);
}

TEST(TableCacheTest, RowsAreAppended) {
  TableCache cache(kLargeBudget);
  const Frequencies frequencies = MakeFrequencies(10000, 4);
  const int64_t positions[] = {3, 200, 4};
  TokenRows rows = Rows(cache, frequencies, positions);
  EXPECT_THAT(cache.AppendRows(frequencies, {}, rows), IsOk());
  EXPECT_THAT(cache.AppendRows(frequencies, positions, rows), IsOk());
  ASSERT_EQ(rows.rows.size(), 6u);
  for (size_t i = 0; i < 6; ++i) ExpectExact(frequencies, positions[i % 3], rows.rows[i]);
}

TEST(TableCacheTest, NoColumnsGiveEmptyRows) {
  TableCache cache(kLargeBudget);
  const int64_t position = 5;
  const TokenRows rows = Rows(cache, MakeFrequencies(10000, 0), {&position, 1});
  EXPECT_EQ(rows.rows[0].page->columns(), 0);
}

// The builder returns only when all callers have arrived: one runs it, the others wait for its
// page.
TEST(TableCacheTest, ConcurrentFirstRequestsBuildOnce) {
  constexpr int kThreads = 8;
  TableCache* target = nullptr;
  std::atomic<int> builds = 0;
  TableCache cache(kLargeBudget, [&](const Frequencies& frequencies, int64_t first) {
    ++builds;
    while (target->statistics().hits < kThreads - 1) std::this_thread::yield();
    return BuildPage(frequencies, first);
  });
  target = &cache;
  std::vector<std::thread> threads;
  std::array<TokenRows, kThreads> rows;
  for (TokenRows& own : rows) {
    threads.emplace_back([&] {
      const int64_t position = 77;
      own = Rows(cache, MakeFrequencies(10000, 8), {&position, 1});
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(builds, 1);
  for (const TokenRows& own : rows) EXPECT_EQ(own.rows[0].page, rows[0].rows[0].page);
  EXPECT_EQ(cache.statistics().misses, 1);
}

TEST(TableCacheTest, FailureGoesToEveryWaiterAndIsNotKept) {
  constexpr int kThreads = 4;
  TableCache* target = nullptr;
  std::atomic<int> builds = 0;
  TableCache cache(kLargeBudget,
                   [&](const Frequencies& frequencies,
                       int64_t first) -> absl::StatusOr<std::shared_ptr<TablePage>> {
                     if (++builds > 1) return BuildPage(frequencies, first);
                     while (target->statistics().hits < kThreads - 1) std::this_thread::yield();
                     return absl::InternalError("no such luck");
                   });
  target = &cache;
  const Frequencies frequencies = MakeFrequencies(10000, 8);
  const int64_t position = 77;
  std::atomic<int> failures = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      TokenRows rows;
      const absl::Status status = cache.AppendRows(frequencies, {&position, 1}, rows);
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal, HasSubstr("no such luck")));
      ++failures;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, kThreads);
  EXPECT_EQ(cache.statistics().pages, 0);
  EXPECT_EQ(cache.statistics().tables, 0);
  EXPECT_EQ(cache.statistics().bytes, 0);
  ExpectExact(frequencies, position, Rows(cache, frequencies, {&position, 1}).rows[0]);
  EXPECT_EQ(builds, 2);
}

void FailToAllocate() {
  std::rethrow_exception(std::make_exception_ptr(std::bad_alloc()));
}

TEST(TableCacheTest, PageWithoutMemoryIsAnErrorAndIsBuiltLater) {
  int builds = 0;
  TableCache cache(kLargeBudget,
                   [&](const Frequencies& frequencies,
                       int64_t first) -> absl::StatusOr<std::shared_ptr<TablePage>> {
                     if (++builds <= 2) FailToAllocate();
                     return BuildPage(frequencies, first);
                   });
  const Frequencies frequencies = MakeFrequencies(10000, 8);
  const int64_t position = 77;
  for (int i = 0; i < 2; ++i) {
    TokenRows rows;
    EXPECT_THAT(cache.AppendRows(frequencies, {&position, 1}, rows),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("rows of 8 pairs")));
  }
  ExpectExact(frequencies, position, Rows(cache, frequencies, {&position, 1}).rows[0]);
  EXPECT_EQ(builds, 3);
}

TEST(TableCacheTest, OtherPagesAreServedWhileOneIsBuilt) {
  proto::Notification building;
  proto::Notification release;
  TableCache cache(kLargeBudget, [&](const Frequencies& frequencies, int64_t first) {
    if (first == 0) {
      building.Notify();
      release.WaitForNotification();
    }
    return BuildPage(frequencies, first);
  });
  const Frequencies frequencies = MakeFrequencies(10000, 8);
  const int64_t slow = 0;
  const int64_t other = 1000;
  std::thread builder([&] { Rows(cache, frequencies, {&slow, 1}); });
  building.WaitForNotification();
  Rows(cache, frequencies, {&other, 1});
  Rows(cache, MakeFrequencies(20000, 8), {&other, 1});
  EXPECT_EQ(cache.statistics().builds, 2);
  release.Notify();
  builder.join();
  EXPECT_EQ(cache.statistics().builds, 3);
}

TEST(TableCacheTest, FrequenciesThatAreNotCacheableLeaveNothingBehind) {
  TableCache cache(kLargeBudget);
  Frequencies frequencies = MakeFrequencies(10000, 32);
  frequencies.cacheable = false;
  const std::vector<int64_t> positions = PositionsAround({7, 1000000, 64 * 1000 - 70, 5, -9000});
  const TokenRows rows = Rows(cache, frequencies, positions);
  for (size_t i = 0; i < positions.size(); ++i) {
    ExpectExact(frequencies, positions[i], rows.rows[i]);
  }
  EXPECT_EQ(cache.statistics().pages, 0);
  EXPECT_EQ(cache.statistics().bytes, 0);
}

TEST(TableCacheTest, SinglePositionsThatAreNotCacheableBuildNoPage) {
  TableCache cache(kLargeBudget, [](const Frequencies&, int64_t) {
    return absl::StatusOr<std::shared_ptr<TablePage>>(absl::InternalError("built a page"));
  });
  Frequencies frequencies = MakeFrequencies(10000, 32);
  frequencies.cacheable = false;
  const int64_t positions[] = {1000, 2000, 2001, 1000};
  const TokenRows rows = Rows(cache, frequencies, positions);
  for (size_t i = 0; i < 4; ++i) ExpectExact(frequencies, positions[i], rows.rows[i]);
}

TEST(TableCacheTest, LeastRecentlyUsedPagesGoFirst) {
  constexpr int64_t kPages = 40;
  const Frequencies frequencies = MakeFrequencies(10000, 64);
  const int64_t page_bytes = kPageRows * 2 * 64 * 4;
  TableCache cache(kPages * page_bytes);
  const int64_t kept = 0;
  for (int64_t page = 0; page < 3 * kPages; ++page) {
    const int64_t position = page * kPageRows;
    Rows(cache, frequencies, {&position, 1});
    Rows(cache, frequencies, {&kept, 1});
    EXPECT_LE(cache.statistics().bytes, cache.budget_bytes() + page_bytes);
  }
  EXPECT_GT(cache.statistics().evictions, kPages);
  EXPECT_EQ(cache.statistics().builds, 3 * kPages);  // the page in use was never built again
  const int64_t builds = cache.statistics().builds;
  const int64_t recent = (3 * kPages - 2) * kPageRows;
  const int64_t old = 2 * kPageRows;
  Rows(cache, frequencies, {&recent, 1});
  EXPECT_EQ(cache.statistics().builds, builds);
  Rows(cache, frequencies, {&old, 1});
  EXPECT_EQ(cache.statistics().builds, builds + 1);
}

TEST(TableCacheTest, RowsOutliveEvictionAndTheCache) {
  const Frequencies frequencies = MakeFrequencies(10000, 16);
  std::optional<TableCache> cache(40000);
  const std::vector<int64_t> positions = PositionsAround({1000, 500000});
  const TokenRows rows = Rows(*cache, frequencies, positions);
  for (int64_t position = 0; position < 100 * kPageRows; position += kPageRows) {
    Rows(*cache, frequencies, {&position, 1});
  }
  EXPECT_GT(cache->statistics().evictions, 50);
  cache.reset();
  for (size_t i = 0; i < positions.size(); ++i) {
    ExpectExact(frequencies, positions[i], rows.rows[i]);
  }
}

TEST(TableCacheTest, PageLargerThanTheBudgetIsServed) {
  TableCache cache(100);
  const Frequencies frequencies = MakeFrequencies(10000, 64);
  const int64_t position = 12345;
  const TokenRows rows = Rows(cache, frequencies, {&position, 1});
  ExpectExact(frequencies, position, rows.rows[0]);
  EXPECT_LE(cache.statistics().bytes, 100);
  EXPECT_EQ(cache.statistics().tables, 0);
}

// Checks the heap, not only the cache's own count, for pages of every size.
TEST(TableCacheTest, ManyConfigsAndFarPositionsStayWithinTheBudget) {
  for (const int64_t columns : {1, 4, 64}) {
    constexpr int64_t kBudget = 8 << 20;
    std::mt19937_64 random(3);
    std::uniform_int_distribution<int64_t> position(0, 10'000'000);
    std::vector<Frequencies> configs;
    for (int i = 0; i < 300; ++i) configs.push_back(MakeFrequencies(10000 + i, columns));
    const auto before = static_cast<int64_t>(mallinfo2().uordblks + mallinfo2().hblkhd);
    TableCache cache(kBudget);
    for (int i = 0; i < 30000; ++i) {
      const int64_t at = position(random);
      Rows(cache, configs[static_cast<size_t>(i) % configs.size()], {&at, 1});
      if (i % 1000 != 0) continue;
      const auto now = static_cast<int64_t>(mallinfo2().uordblks + mallinfo2().hblkhd);
      ASSERT_LE(now - before, kBudget + kBudget / 10) << columns << " columns, request " << i;
      ASSERT_LE(cache.statistics().bytes, kBudget + (1 << 16));
    }
    EXPECT_GT(cache.statistics().evictions, 0);
  }
}

TEST(TableCacheTest, ConcurrentUseUnderEvictionStaysRight) {
  TableCache cache(1 << 20);
  std::vector<std::thread> threads;
  for (unsigned caller = 0; caller < 4; ++caller) {
    threads.emplace_back([&cache, caller] {
      std::mt19937 random(caller);
      for (int i = 0; i < 2000; ++i) {
        const Frequencies frequencies =
            MakeFrequencies(10000 + static_cast<double>(random() % 20), 8);
        const int64_t positions[] = {static_cast<int64_t>(random() % 50000), 5};
        const TokenRows rows = Rows(cache, frequencies, positions);
        ExpectExact(frequencies, positions[0], rows.rows[0]);
        ExpectExact(frequencies, positions[1], rows.rows[1]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(cache.statistics().evictions, 0);
  EXPECT_LE(cache.statistics().bytes, cache.budget_bytes());
}

}  // namespace
}  // namespace rope::kernels
