#include "kernels/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "absl/synchronization/barrier.h"

namespace rope::kernels {
namespace {

TEST(WorkerPoolTest, RunsEveryItemOnce) {
  for (const int threads : {1, 2, 5}) {
    WorkerPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t items : {0, 1, 2, 3, 100, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(items));
      pool.ParallelFor(items, [&](int64_t i) { runs[static_cast<size_t>(i)].fetch_add(1); });
      for (const std::atomic<int>& count : runs) EXPECT_EQ(count.load(), 1);
    }
  }
}

TEST(WorkerPoolTest, SpreadsItemsOverItsThreads) {
  constexpr int kThreads = 3;
  WorkerPool pool(kThreads);
  // Passes only when three items run at the same time.
  absl::Barrier barrier(kThreads);
  std::atomic<int> passed{0};
  pool.ParallelFor(kThreads, [&](int64_t) {
    barrier.Block();
    passed.fetch_add(1);
  });
  EXPECT_EQ(passed.load(), kThreads);
}

TEST(WorkerPoolTest, OneThreadMeansTheCallers) {
  WorkerPool pool(1);
  std::set<std::thread::id> ids;
  pool.ParallelFor(10, [&](int64_t) { ids.insert(std::this_thread::get_id()); });
  EXPECT_EQ(ids, std::set<std::thread::id>{std::this_thread::get_id()});
}

TEST(WorkerPoolTest, SeveralCallersAtOnceEachGetAllOfTheirItems) {
  WorkerPool pool(2);
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        pool.ParallelFor(20, [&](int64_t i) { sum.fetch_add(i); });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum.load(), 4 * 50 * 190);
}

}  // namespace
}  // namespace rope::kernels
