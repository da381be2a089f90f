#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/backend/worker_pool.h"
#include "kernels/tables/table_cache.h"
#include "proto/mutex.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/kernels/tables/table_rows.h"

namespace {
void FailToAllocate() {
  std::rethrow_exception(std::make_exception_ptr(std::bad_alloc()));
}
// The allocation of this thread that fails: 0 is the next one, -1 none.
thread_local int64_t failing_allocation = -1;
}  // namespace
// Not inlined: GCC would take each new with this delete for a mismatched pair.
[[gnu::noinline]] void* operator new(size_t bytes) {
  if (failing_allocation >= 0 && failing_allocation-- == 0) FailToAllocate();
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) FailToAllocate();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace rope::kernels {
namespace {

TEST(WorkerPoolTest, RunsEveryItemOnce) {
  for (const int threads : {1, 2, 5}) {
    WorkerPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t items : {0, 1, 2, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(items));
      pool.ParallelFor(items, [&](int64_t i) { ++runs[static_cast<size_t>(i)]; });
      for (const std::atomic<int>& count : runs) EXPECT_EQ(count, 1);
    }
  }
}

TEST(WorkerPoolTest, OneThreadIsTheCaller) {
  WorkerPool pool(1);
  pool.ParallelFor(3, [caller = std::this_thread::get_id()](int64_t) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
  });
}

TEST(WorkerPoolTest, ThreadsWorkAtTheSameTime) {
  WorkerPool pool(3);
  // Three items, each of which waits until all three have started.
  std::atomic<int> begun = 0;
  proto::Notification all_begun;
  pool.ParallelFor(3, [&](int64_t) {
    if (++begun == 3) all_begun.Notify();
    all_begun.WaitForNotification();
  });
  EXPECT_EQ(begun, 3);
}

TEST(WorkerPoolTest, EveryCallHasItsHelpersHoweverSoonAfterTheLastItComes) {
  WorkerPool pool(3);
  constexpr int kCalls = 3000;
  for (int call = 0; call < kCalls; ++call) {
    // Workers spin, are about to sleep, or sleep. Some calls have fewer items than threads.
    const int items = 2 + call % 2;
    std::atomic<int> begun = 0;
    pool.ParallelFor(items, [&](int64_t) {
      ++begun;
      while (begun != items) std::this_thread::yield();
    });
    const auto begin = std::chrono::steady_clock::now();
    const auto pause = std::chrono::microseconds(call % 100);
    while (std::chrono::steady_clock::now() - begin < pause) std::this_thread::yield();
  }
}

// In a virtual machine Linux wakes threads where their waker runs, so both would share one CPU.
TEST(WorkerPoolTest, AWorkerThatIsWokenOnItsCallersCpuMovesToAnother) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  if (CPU_COUNT(&allowed) < 2) GTEST_SKIP() << "needs two CPUs";
  WorkerPool pool(2);
  const int cpu = sched_getcpu();
  cpu_set_t own;
  CPU_ZERO(&own);
  CPU_SET(cpu, &own);
  ASSERT_EQ(sched_setaffinity(0, sizeof(own), &own), 0);
  constexpr int kCalls = 50;
  int beside_caller = 0;
  for (int call = 0; call < kCalls; ++call) {
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < std::chrono::microseconds(200)) {
      std::this_thread::yield();  // until the worker sleeps
    }
    std::atomic<int> begun = 0;
    pool.ParallelFor(2, [&, caller = std::this_thread::get_id()](int64_t) {
      if (std::this_thread::get_id() != caller && sched_getcpu() == cpu) ++beside_caller;
      ++begun;
      while (begun != 2) std::this_thread::yield();
    });
  }
  EXPECT_EQ(sched_setaffinity(0, sizeof(allowed), &allowed), 0);
  EXPECT_LT(beside_caller, kCalls / 2);  // a busy system may move a few back
}

TEST(WorkerPoolTest, CallerDoesNotWaitForBusyWorkers) {
  WorkerPool pool(2);
  proto::Notification worker_is_stuck;
  proto::Notification release;
  std::thread stuck_caller([&] {
    pool.ParallelFor(2, [&](int64_t i) {
      if (i == 1) worker_is_stuck.Notify();
      release.WaitForNotification();
    });
  });
  worker_is_stuck.WaitForNotification();  // both threads of that call run an item
  std::atomic<int> runs = 0;
  pool.ParallelFor(100, [&](int64_t) { ++runs; });
  EXPECT_EQ(runs, 100);
  release.Notify();
  stuck_caller.join();
}

TEST(WorkerPoolTest, ConcurrentAndNestedCallsEachRunTheirOwn) {
  WorkerPool pool(3);
  constexpr int kCallers = 4;
  std::vector<std::thread> callers;
  callers.reserve(kCallers);
  std::atomic<int64_t> sum = 0;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        pool.ParallelFor(
            5, [&](int64_t i) { pool.ParallelFor(2, [&](int64_t j) { sum += 10 * i + j; }); });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, kCallers * 200 * (2 * 10 * (0 + 1 + 2 + 3 + 4) + 5));
}

// An embedding of one pair, different for each number. Its rows do not matter: EmptyPage builds
// them.
Frequencies OnePair(int64_t number) {
  Frequencies frequencies;
  frequencies.inv_freq = {1 / static_cast<InverseFrequency>(number + 1)};
  frequencies.key = TableKey(frequencies);
  return frequencies;
}

absl::StatusOr<std::shared_ptr<TablePage>> EmptyPage(const Frequencies& frequencies, int64_t) {
  const auto columns = static_cast<int64_t>(frequencies.inv_freq.size());
  std::vector<float> values(static_cast<size_t>(kPageRows * 2 * columns));
  return std::make_shared<TablePage>(kPageRows, columns, std::move(values));
}

// What pages and tables of OnePair count, as the cache says.
struct Costs {
  int64_t page = 0;
  int64_t table = 0;
};

Costs OnePairCosts() {
  TableCache cache(kLargeBudget, &EmptyPage);
  const int64_t positions[] = {0, kPageRows};
  Rows(cache, OnePair(0), {positions, 1});
  const int64_t one = cache.bytes();
  Rows(cache, OnePair(0), positions);
  const int64_t page = cache.bytes() - one;
  return {page, one - page};
}

// A cache of OnePair pages that keeps no counts of what it has: it walks all of its pages to count
// them. Its order of evictions is a list by last use.
class PlainCache {
 public:
  PlainCache(int64_t budget, Costs costs) : budget_(budget), costs_(costs) {}

  void Use(int64_t number, int64_t page) {
    const std::pair key(number, page);
    const auto used = last_use_.find(key);
    if (used != last_use_.end()) {
      ++counts_.hits;
      by_use_.erase(used->second);
    } else {
      ++counts_.misses;
      ++counts_.builds;
    }
    last_use_[key] = ++clock_;
    by_use_[clock_] = key;
    while (statistics().bytes > budget_) {
      last_use_.erase(by_use_.begin()->second);
      by_use_.erase(by_use_.begin());
      ++counts_.evictions;
    }
  }

  TableCache::Statistics statistics() const {
    TableCache::Statistics result = counts_;
    std::set<int64_t> tables;
    for (const auto& [key, use] : last_use_) tables.insert(key.first);
    result.tables = std::ssize(tables);
    result.pages = std::ssize(last_use_);
    result.bytes = result.pages * costs_.page + result.tables * costs_.table;
    return result;
  }

 private:
  const int64_t budget_;
  const Costs costs_;
  TableCache::Statistics counts_;
  int64_t clock_ = 0;
  std::map<std::pair<int64_t, int64_t>, int64_t> last_use_;  // by number and page
  std::map<int64_t, std::pair<int64_t, int64_t>> by_use_;
};

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

void ExpectExactRows(const Frequencies& frequencies, const std::vector<int64_t>& positions,
                     const TokenRows& rows) {
  for (size_t i = 0; i < positions.size(); ++i) {
    ExpectExact(frequencies, positions[i], rows.rows[i]);
  }
}

TEST(TableCacheTest, RowsAreRightAtEveryPosition) {
  TableCache cache(kLargeBudget);
  const std::vector<int64_t> positions =
      PositionsAround({0, 1000000, 1 << 24, 1000000000, int64_t{1} << 30, -1000000, -(1 << 30)});
  for (const double multiplier : {1.0, 1.1386294361119891, 0.25}) {
    for (const double theta : {10000.0, 500000.0, 1e7}) {
      const Frequencies frequencies = MakeFrequencies(theta, 64, multiplier);
      const TokenRows rows = Rows(cache, frequencies, positions);
      ExpectExactRows(frequencies, positions, rows);
    }
  }
}

TEST(TableCacheTest, FrequenciesAboveOneRadianAreRight) {
  TableCache cache(kLargeBudget);
  Frequencies frequencies = MakeFrequencies(0.001, 5);  // up to hundreds of radians per position
  const std::vector<int64_t> positions = PositionsAround({0, 100000});
  const TokenRows rows = Rows(cache, frequencies, positions);
  ExpectExactRows(frequencies, positions, rows);
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
  ExpectExactRows(frequencies, positions, rows);
  EXPECT_EQ(cache.statistics().hits, 5);
  EXPECT_EQ(cache.statistics().misses, 4 + 197);
  EXPECT_EQ(cache.statistics().pages, 201);
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

// Positions on separate pages.
std::vector<int64_t> Scattered(int64_t count) {
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < count; ++i) positions.push_back(i * 10 * kPageRows);
  return positions;
}

// The number of positions that have their rows.
int64_t Serve(TableCache& cache, const Frequencies& frequencies,
              absl::Span<const int64_t> positions, int64_t& budget, TokenRows& rows) {
  const auto served = cache.AppendRows(frequencies, positions, budget, rows);
  EXPECT_THAT(served, IsOk());
  return served.value_or(-1);
}

TEST(BuildBudgetTest, RowsEndAtAPageToBuildOnceNothingIsLeft) {
  TableCache cache(kLargeBudget);
  const Frequencies frequencies = MakeFrequencies(10000, 64);
  const int64_t page_bytes = BuildBytes(frequencies, kPageRows);
  EXPECT_EQ(page_bytes, kPageRows * 2 * 64 * 4);
  const std::vector<int64_t> positions = Scattered(6);
  TokenRows rows;
  int64_t budget = 2 * page_bytes + 1;
  EXPECT_EQ(Serve(cache, frequencies, positions, budget, rows), 3);
  EXPECT_EQ(budget, 1 - page_bytes);
  EXPECT_EQ(Serve(cache, frequencies, positions, budget, rows), 3)
      << "pages that are there cost nothing";
  EXPECT_EQ(rows.rows.size(), 6U);
  EXPECT_EQ(budget, 1 - page_bytes);
  const auto rest = absl::MakeConstSpan(positions).subspan(3);
  EXPECT_EQ(Serve(cache, frequencies, rest, budget, rows), 1) << "at least one";
  EXPECT_EQ(cache.statistics().builds, 4);
  for (size_t i = 0; i < rows.rows.size(); ++i) {
    ExpectExact(frequencies, positions[i % 3 + (i == 6 ? 3 : 0)], rows.rows[i]);
  }
}

TEST(BuildBudgetTest, APageIsAHitOnceItsRowsAreReturned) {
  TableCache cache(kLargeBudget);
  const Frequencies frequencies = MakeFrequencies(10000, 64);
  const std::vector<int64_t> positions = Scattered(3);
  TokenRows rows;
  int64_t budget = 1;
  EXPECT_EQ(Serve(cache, frequencies, {&positions.back(), 1}, budget, rows), 1);
  budget = 1;
  EXPECT_EQ(Serve(cache, frequencies, positions, budget, rows), 1);
  EXPECT_EQ(cache.statistics().hits, 0) << "its rows come after a page that was not built";
  budget = kLargeBudget;
  const auto rest = absl::MakeConstSpan(positions).subspan(1);
  EXPECT_EQ(Serve(cache, frequencies, rest, budget, rows), 2);
  EXPECT_EQ(cache.statistics().hits, 1);
}

TEST(BuildBudgetTest, OwnRowsCostAsTheyAreBuilt) {
  TableCache cache(kLargeBudget);
  Frequencies frequencies = MakeFrequencies(10000, 64);
  frequencies.cacheable = false;
  const int64_t page_bytes = BuildBytes(frequencies, kPageRows);
  TokenRows rows;
  int64_t budget = page_bytes;
  EXPECT_EQ(Serve(cache, frequencies, Scattered(6), budget, rows), 4);
  EXPECT_EQ(budget, 0);
  std::vector<int64_t> prefill(size_t{3 * kPageRows});
  std::iota(prefill.begin(), prefill.end(), 0);
  budget = 2 * page_bytes;
  EXPECT_EQ(Serve(cache, frequencies, prefill, budget, rows), 2 * kPageRows);
  EXPECT_EQ(budget, 0);
}

TEST(BuildBudgetTest, NarrowRowsAndThoseOfPrecisionHfCostMoreThanTheirBytes) {
  EXPECT_EQ(BuildBytes(MakeFrequencies(10000, 1), 10), BuildBytes(MakeFrequencies(10000, 8), 10));
  Frequencies eager = MakeFrequencies(10000, 64);
  eager.eager = DType::kBFloat16;
  EXPECT_EQ(BuildBytes(eager, 10), 4 * BuildBytes(MakeFrequencies(10000, 64), 10));
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
      EXPECT_THAT(status, IsInternal("no such luck"));
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
                IsExhausted("rows of 8 pairs"));
  }
  ExpectExact(frequencies, position, Rows(cache, frequencies, {&position, 1}).rows[0]);
  EXPECT_EQ(builds, 3);
}

// Fails each allocation of a request in turn, those of the cache's own lists included.
TEST(TableCacheTest, FailedAllocationsLeaveNoHalfOfAPage) {
  const Frequencies frequencies = MakeFrequencies(10000, 8);
  const Frequencies other = MakeFrequencies(20000, 8);
  const int64_t position = 77;
  bool failed = true;
  int64_t failures = 0;
  for (; failed; ++failures) {
    ASSERT_LT(failures, 1000);
    TableCache cache(kLargeBudget);
    Rows(cache, other, {&position, 1});
    const int64_t other_bytes = cache.bytes();
    TokenRows rows;
    failing_allocation = failures;
    try {
      cache.AppendRows(frequencies, {&position, 1}, rows).IgnoreError();
    } catch (const std::bad_alloc&) {
      // An allocation for `rows`. The server makes a status of it.
    }
    failed = failing_allocation < 0;
    failing_allocation = -1;
    const TableCache::Statistics left = cache.statistics();
    EXPECT_EQ(left.tables, left.pages) << failures;
    EXPECT_EQ(left.bytes, left.pages * other_bytes) << failures;
    ExpectExact(frequencies, position, Rows(cache, frequencies, {&position, 1}).rows[0]);
    EXPECT_EQ(cache.statistics().tables, 2) << failures;
    EXPECT_EQ(cache.statistics().pages, 2) << failures;
    EXPECT_EQ(cache.bytes(), 2 * other_bytes) << failures;
  }
  EXPECT_GT(failures, 10);
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
  ExpectExactRows(frequencies, positions, rows);
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

TEST(TableCacheTest, StatisticsAreThoseOfAWalkAndTheLeastRecentUseGoesFirst) {
  const Costs costs = OnePairCosts();
  const int64_t budget = 100 * costs.page + 20 * costs.table;
  PlainCache plain(budget, costs);
  TableCache cache(budget, &EmptyPage);
  std::mt19937 random(5);
  for (int i = 0; i < 5000; ++i) {
    const int64_t number = random() % 30;
    const int64_t page = random() % 8;
    const int64_t position = page * kPageRows;
    Rows(cache, OnePair(number), {&position, 1});
    plain.Use(number, page);
    const TableCache::Statistics is = cache.statistics();
    const TableCache::Statistics want = plain.statistics();
    ASSERT_EQ(is.hits, want.hits) << i;
    ASSERT_EQ(is.misses, want.misses) << i;
    ASSERT_EQ(is.builds, want.builds) << i;
    ASSERT_EQ(is.evictions, want.evictions) << i;
    ASSERT_EQ(is.bytes, want.bytes) << i;
    ASSERT_EQ(is.tables, want.tables) << i;
    ASSERT_EQ(is.pages, want.pages) << i;
    ASSERT_EQ(cache.bytes(), want.bytes) << i;
  }
  EXPECT_GT(cache.statistics().evictions, 1000);
}

TEST(TableCacheTest, ManyTinyTablesStayWithinTheirNumberAndTheBudget) {
  constexpr int64_t kBudget = 256 << 20;
  constexpr int64_t kMore = 1000;
  const int64_t most = TableCache::PagesMax(kBudget);
  EXPECT_EQ(most, 32768);
  EXPECT_EQ(TableCache::PagesMax(0), most);
  EXPECT_EQ(TableCache::PagesMax(4 * kBudget), 4 * most);
  TableCache cache(kBudget, &EmptyPage);
  const int64_t position = 5;
  for (int64_t i = 0; i < most + kMore; ++i) {
    Rows(cache, OnePair(i), {&position, 1});
    ASSERT_EQ(cache.statistics().pages, std::min(i + 1, most));
    ASSERT_EQ(cache.statistics().tables, std::min(i + 1, most));
    ASSERT_EQ(cache.statistics().evictions, std::max<int64_t>(i + 1 - most, 0));
    ASSERT_LE(cache.bytes(), kBudget);
  }
  // The pages of one table count like those of many, and the tables that they displace are gone.
  for (int64_t page = 1; page <= most; ++page) {
    const int64_t next = page * kPageRows;
    Rows(cache, OnePair(0), {&next, 1});
  }
  EXPECT_EQ(cache.statistics().pages, most);
  EXPECT_EQ(cache.statistics().tables, 1);
  EXPECT_EQ(cache.bytes(), most * OnePairCosts().page + OnePairCosts().table);
}

// An eviction sends at most PageUses::kLooksMax pages back to their last use. Here all are in use.
TEST(TableCacheTest, EvictionAmongPagesThatAreAllInUseDropsOneOfThem) {
  constexpr int64_t kPages = 5000;
  const Costs costs = OnePairCosts();
  TableCache cache(kPages * costs.page + costs.table, &EmptyPage);
  std::vector<int64_t> positions;
  positions.reserve(kPages);
  for (int64_t page = 0; page < kPages; ++page) positions.push_back(page * kPageRows);
  Rows(cache, OnePair(0), positions);
  Rows(cache, OnePair(0), positions);
  EXPECT_EQ(cache.statistics().evictions, 0);
  for (int64_t more = 1; more <= 20; ++more) {
    const int64_t next = (kPages + more) * kPageRows;
    Rows(cache, OnePair(0), {&next, 1});
    EXPECT_EQ(cache.statistics().evictions, more);
    EXPECT_EQ(cache.statistics().pages, kPages);
  }
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
  ExpectExactRows(frequencies, positions, rows);
}

// Bytes of the heap that are in use.
int64_t HeapBytes() {
  return static_cast<int64_t>(mallinfo2().uordblks + mallinfo2().hblkhd);
}

// Checks the heap, not only the cache's own count, for pages of every size.
TEST(TableCacheTest, ManyConfigsAndFarPositionsStayWithinTheBudget) {
  for (const int64_t columns : {1, 4, 64}) {
    constexpr int64_t kBudget = 8 << 20;
    std::mt19937_64 random(3);
    std::uniform_int_distribution<int64_t> position(0, 10'000'000);
    std::vector<Frequencies> configs;
    for (int i = 0; i < 300; ++i) configs.push_back(MakeFrequencies(10000 + i, columns));
    const int64_t before = HeapBytes();
    TableCache cache(kBudget);
    for (int i = 0; i < 30000; ++i) {
      const int64_t at = position(random);
      Rows(cache, configs[static_cast<size_t>(i) % configs.size()], {&at, 1});
      if (i % 1000 != 0) continue;
      ASSERT_LE(HeapBytes() - before, kBudget + kBudget / 10)
          << columns << " columns, request " << i;
      ASSERT_LE(cache.statistics().bytes, kBudget + (1 << 16));
    }
    EXPECT_GT(cache.statistics().evictions, 0);
  }
}

TEST(TableCacheTest, TablesOfOnePageStayWithinTheBudget) {
  constexpr int64_t kBudget = 8 << 20;
  const int64_t before = HeapBytes();
  TableCache cache(kBudget, &EmptyPage);
  const int64_t position = 5;
  for (int64_t i = 0; i < 30000; ++i) {
    Rows(cache, OnePair(i), {&position, 1});
    ASSERT_LE(cache.bytes(), kBudget);
    if (i % 1000 != 0) continue;
    ASSERT_LE(HeapBytes() - before, kBudget + kBudget / 10) << i;
  }
  EXPECT_GT(cache.statistics().evictions, 10000);
}

// Builds that fail, evictions, and a thread that reads the counts meanwhile.
TEST(TableCacheTest, CountsOfConcurrentUseEndAtNothing) {
  constexpr int64_t kBudget = 200000;
  TableCache cache(kBudget,
                   [](const Frequencies& frequencies,
                      int64_t first) -> absl::StatusOr<std::shared_ptr<TablePage>> {
                     if (first % (7 * kPageRows) == 0) return absl::InternalError("each seventh");
                     return EmptyPage(frequencies, first);
                   });
  std::atomic<int> running = 4;
  std::vector<std::jthread> threads;
  for (unsigned caller = 0; caller < 4; ++caller) {
    threads.emplace_back([&cache, &running, caller] {
      std::mt19937 random(caller);
      for (int i = 0; i < 5000; ++i) {
        const int64_t position = random() % (50 * kPageRows);
        TokenRows rows;
        cache.AppendRows(OnePair(random() % 20), {&position, 1}, rows).IgnoreError();
      }
      --running;
    });
  }
  const int64_t page = OnePairCosts().page;
  while (running > 0) {
    const TableCache::Statistics now = cache.statistics();
    ASSERT_GE(now.bytes, 0);
    ASSERT_GE(now.pages, 0);
    ASSERT_GE(now.tables, 0);
    ASSERT_LE(now.tables, 20);
    ASSERT_LE(now.pages, kBudget / page + 8);  // four are being built, and four not counted yet
  }
  threads.clear();
  const TableCache::Statistics end = cache.statistics();
  EXPECT_EQ(end.pages, end.builds - end.evictions);
  EXPECT_EQ(end.bytes, end.pages * page + end.tables * OnePairCosts().table);
  EXPECT_GT(end.evictions, 1000);
  const int64_t position = kPageRows;
  Rows(cache, MakeFrequencies(10000, 4096), {&position, 1});  // larger than the budget
  EXPECT_EQ(cache.bytes(), 0);
  EXPECT_EQ(cache.statistics().pages, 0);
  EXPECT_EQ(cache.statistics().tables, 0);
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
