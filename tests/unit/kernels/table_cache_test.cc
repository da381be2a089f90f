#include "kernels/table_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <random>
#include <thread>

#include "absl/synchronization/notification.h"
#include "tests/support/status_matchers.h"

namespace rope::kernels {
namespace {

using rope::testing::IsOk;
using rope::testing::StatusIs;

std::shared_ptr<const Frequencies> MakeFrequencies(double theta, int64_t head_dim = 128) {
  RopeConfig config;
  config.rope_theta = theta;
  auto resolved = Resolve(config, head_dim);
  EXPECT_THAT(resolved, IsOk());
  return (*resolved)->ForSeqLen(1, Multiplier::kAttentionFactor);
}

std::shared_ptr<const Frequencies> MakeDynamic(int64_t seq_len) {
  RopeConfig config;
  config.rope_type = RopeType::kDynamic;
  config.factor = 4;
  config.max_position_embeddings = 1000;
  auto resolved = Resolve(config, 64);
  EXPECT_THAT(resolved, IsOk());
  return (*resolved)->ForSeqLen(seq_len, Multiplier::kAttentionFactor);
}

// Largest distance of a row's float32 numbers from the exact ones.
double WorstError(const Frequencies& frequencies, const RowRef& row, int64_t position) {
  double worst = 0;
  for (size_t i = 0; i < frequencies.inv_freq.size(); ++i) {
    const CosSin exact = ExactCosSin(position, frequencies.inv_freq[i], frequencies.multiplier);
    worst = std::max<double>(worst, std::fabs(row.page->Cos(row.index)[i] - exact.cos));
    worst = std::max<double>(worst, std::fabs(row.page->Sin(row.index)[i] - exact.sin));
  }
  return worst;
}

TEST(TableCacheTest, RowsAreTheNearestFloatsAtEveryPosition) {
  TableCache cache(int64_t{1} << 26);
  for (const double theta : {10000.0, 500000.0}) {
    const auto frequencies = MakeFrequencies(theta);
    const std::vector<int64_t> positions = {
        0, 1, 63, 64, 1000000, 16777215, 16777216, 16777217, 999999999, 1 << 30, (1 << 30) - 1};
    TokenRows rows;
    ASSERT_THAT(cache.AppendRows(*frequencies, positions, rows), IsOk());
    ASSERT_EQ(rows.rows.size(), positions.size());
    for (size_t i = 0; i < positions.size(); ++i) {
      // Half a unit in the last place of numbers up to 1, and what far angles themselves are good for.
      EXPECT_LE(WorstError(*frequencies, rows.rows[i], positions[i]), 0x1p-25 + 1e-9)
          << positions[i];
    }
  }
}

TEST(TableCacheTest, OneDecodeTokenBuildsOnePage) {
  TableCache cache(int64_t{1} << 26);
  const auto frequencies = MakeFrequencies(10000);
  const int64_t position = 1000000;
  TokenRows rows;
  ASSERT_THAT(cache.AppendRows(*frequencies, {&position, 1}, rows), IsOk());
  ASSERT_THAT(cache.AppendRows(*frequencies, {&position, 1}, rows), IsOk());
  const TableCache::Statistics statistics = cache.statistics();
  EXPECT_EQ(statistics.builds, 1);
  EXPECT_EQ(statistics.misses, 1);
  EXPECT_EQ(statistics.hits, 1);
  EXPECT_EQ(statistics.pages, 1);
  EXPECT_EQ(statistics.tables, 1);
  EXPECT_EQ(rows.rows[0].page, rows.rows[1].page);
  EXPECT_LT(statistics.bytes, 2 * kPageRows * 128 * 4);
}

TEST(TableCacheTest, ConfigsThatMeanTheSameShareTheirPages) {
  TableCache cache(int64_t{1} << 26);
  const int64_t position = 5;
  TokenRows rows;
  ASSERT_THAT(cache.AppendRows(*MakeFrequencies(10000), {&position, 1}, rows), IsOk());
  ASSERT_THAT(cache.AppendRows(*MakeFrequencies(10000), {&position, 1}, rows), IsOk());
  ASSERT_THAT(cache.AppendRows(*MakeFrequencies(10001), {&position, 1}, rows), IsOk());
  EXPECT_EQ(cache.statistics().builds, 2);
  EXPECT_EQ(cache.statistics().tables, 2);
}

TEST(TableCacheTest, FrequenciesThatFollowSeqLenAreRightAndNotKept) {
  TableCache cache(int64_t{1} << 26);
  const auto frequencies = MakeDynamic(5000);
  ASSERT_FALSE(frequencies->cacheable);
  std::vector<int64_t> positions = {4999, 7};
  for (int64_t i = 100; i < 300; ++i) positions.push_back(i);
  TokenRows rows;
  ASSERT_THAT(cache.AppendRows(*frequencies, positions, rows), IsOk());
  for (size_t i = 0; i < positions.size(); ++i) {
    EXPECT_LE(WorstError(*frequencies, rows.rows[i], positions[i]), 0x1p-25 + 1e-9);
  }
  EXPECT_EQ(cache.statistics().pages, 0);
}

TEST(TableCacheTest, ConcurrentFirstRequestsBuildOnce) {
  constexpr int kThreads = 8;
  absl::Notification started;
  std::atomic<int> builds{0};
  absl::Notification released;
  TableCache cache(int64_t{1} << 26, [&](const Frequencies& frequencies, int64_t first) {
    builds.fetch_add(1);
    started.Notify();  // a second build would notify twice, which aborts
    released.WaitForNotification();
    return BuildPage(frequencies, first);
  });
  const auto frequencies = MakeFrequencies(10000);
  std::vector<TokenRows> rows(kThreads);
  std::vector<std::thread> threads;
  const auto ask = [&](size_t i) {
    const int64_t position = static_cast<int64_t>(i);
    EXPECT_THAT(cache.AppendRows(*frequencies, {&position, 1}, rows[i]), IsOk());
  };
  threads.emplace_back(ask, 0);
  started.WaitForNotification();
  for (size_t i = 1; i < kThreads; ++i) threads.emplace_back(ask, i);
  // Look-ups are counted before a thread waits: all are in when this many have been.
  const auto looked_up = [&] { return cache.statistics().hits + cache.statistics().misses; };
  while (looked_up() < kThreads) std::this_thread::yield();
  released.Notify();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(builds.load(), 1);
  for (const TokenRows& each : rows) EXPECT_EQ(each.rows[0].page, rows[0].rows[0].page);
}

TEST(TableCacheTest, FailureIsReturnedAndNotKept) {
  int calls = 0;
  TableCache cache(int64_t{1} << 26,
                   [&](const Frequencies& frequencies,
                       int64_t first) -> absl::StatusOr<std::shared_ptr<const TablePage>> {
                     if (++calls == 1) return absl::InternalError("the device is on fire");
                     return BuildPage(frequencies, first);
                   });
  const auto frequencies = MakeFrequencies(10000);
  const int64_t position = 3;
  TokenRows rows;
  EXPECT_THAT(cache.AppendRows(*frequencies, {&position, 1}, rows),
              StatusIs(absl::StatusCode::kInternal, ::testing::HasSubstr("fire")));
  EXPECT_EQ(cache.statistics().pages, 0);
  EXPECT_THAT(cache.AppendRows(*frequencies, {&position, 1}, rows), IsOk());
  EXPECT_EQ(calls, 2);
}

TEST(TableCacheTest, ManyConfigsAtRandomPositionsStayWithinTheBudget) {
  constexpr int64_t kBudget = 4 << 20;
  TableCache cache(kBudget);
  std::mt19937_64 random(1);
  for (int config = 0; config < 200; ++config) {
    const auto frequencies = MakeFrequencies(10000 + config);
    std::vector<int64_t> positions;
    for (int i = 0; i < 8; ++i) positions.push_back(static_cast<int64_t>(random() % 10000000));
    TokenRows rows;
    ASSERT_THAT(cache.AppendRows(*frequencies, positions, rows), IsOk());
    EXPECT_LE(cache.statistics().bytes, kBudget + kBudget / 10);
  }
  EXPECT_GT(cache.statistics().evictions, 0);
  EXPECT_GT(cache.statistics().bytes, kBudget / 2);
}

TEST(TableCacheTest, TheLeastRecentlyUsedPagesGo) {
  TableCache cache(10 * kPageRows * 128 * 4);  // about ten pages
  const auto frequencies = MakeFrequencies(10000);
  const auto touch = [&](int64_t position) {
    TokenRows rows;
    ASSERT_THAT(cache.AppendRows(*frequencies, {&position, 1}, rows), IsOk());
  };
  touch(0);
  for (int64_t page = 1; page < 40; ++page) {
    touch(page * kPageRows);
    touch(0);
  }
  const int64_t misses = cache.statistics().misses;
  touch(0);
  EXPECT_EQ(cache.statistics().misses, misses);
  touch(kPageRows);
  EXPECT_EQ(cache.statistics().misses, misses + 1);
}

TEST(TableCacheTest, RowsInUseOutliveTheirEvictionAndTheCache) {
  const auto frequencies = MakeFrequencies(10000);
  TokenRows kept;
  {
    TableCache cache(1);  // smaller than a page
    for (int64_t page = 0; page < 5; ++page) {
      const int64_t position = page * kPageRows + 7;
      ASSERT_THAT(cache.AppendRows(*frequencies, {&position, 1}, kept), IsOk());
    }
  }
  for (size_t page = 0; page < 5; ++page) {
    const auto position = static_cast<int64_t>(page) * kPageRows + 7;
    EXPECT_LE(WorstError(*frequencies, kept.rows[page], position), 0x1p-25 + 1e-9);
  }
}

TEST(TableCacheTest, ManyThreadsUnderEvictionGetTheRightRows) {
  TableCache cache(6 * kPageRows * 128 * 4);
  const auto frequencies = MakeFrequencies(10000);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (uint32_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937 random(seed);
      for (int i = 0; i < 300; ++i) {
        const int64_t position = static_cast<int64_t>(random() % (20 * kPageRows));
        TokenRows rows;
        if (!cache.AppendRows(*frequencies, {&position, 1}, rows).ok()) ++wrong;
        if (WorstError(*frequencies, rows.rows[0], position) > 0x1p-25 + 1e-9) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(TableCacheTest, ThreeAxisRowsTakeEachFrequencysOwnAxis) {
  TableCache cache(int64_t{1} << 26);
  const auto frequencies = MakeFrequencies(10000, 64);
  const Mrope mrope = {{16, 8, 8}, Mrope::Layout::kSections};
  const std::vector<int64_t> t = {5, 9};
  const std::vector<int64_t> h = {5, 100};
  const std::vector<int64_t> w = {5, 200000};
  const std::vector<absl::Span<const int64_t>> axes = {t, h, w};
  TokenRows rows;
  ASSERT_THAT(AppendMropeRows(cache, *frequencies, mrope, axes, rows), IsOk());
  ASSERT_EQ(rows.rows.size(), 2u);
  for (size_t token = 0; token < 2; ++token) {
    for (size_t i = 0; i < 32; ++i) {
      const int64_t position = i < 16 ? t[token] : i < 24 ? h[token] : w[token];
      const CosSin exact = ExactCosSin(position, frequencies->inv_freq[i], 1);
      EXPECT_NEAR(rows.rows[token].page->Cos(rows.rows[token].index)[i], exact.cos, 4e-8);
      EXPECT_NEAR(rows.rows[token].page->Sin(rows.rows[token].index)[i], exact.sin, 4e-8);
    }
  }
}

}  // namespace
}  // namespace rope::kernels
