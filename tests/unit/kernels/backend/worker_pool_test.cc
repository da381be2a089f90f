#include "kernels/backend/worker_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "proto/mutex.h"

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

}  // namespace
}  // namespace rope::kernels
