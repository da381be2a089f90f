#include "client/memory/output_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace rope::client {
namespace {

constexpr int64_t kMib = 1 << 20;
constexpr int64_t kLimit = 8 * kMib;

// The address of a piece that is given back at once.
const std::byte* GiveBackOne(OutputPool& pool, int64_t bytes) {
  return pool.Allocate(bytes).get();
}

// An array that an allocator would place where a piece was freed a moment ago.
std::unique_ptr<std::byte[]> NewArray(int64_t bytes) {
  return std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes));
}

TEST(OutputPoolTest, PieceThatCameBackIsUsedAgain) {
  const auto pool = OutputPool::Make(kLimit);
  const std::byte* first = GiveBackOne(*pool, kMib);
  EXPECT_EQ(pool->idle_bytes(), kMib);
  const auto other = NewArray(kMib);
  EXPECT_EQ(pool->Allocate(kMib).get(), first);
}

TEST(OutputPoolTest, SizesWithinAnEighthShareAPiece) {
  const auto pool = OutputPool::Make(kLimit);
  const std::byte* first = GiveBackOne(*pool, kMib + 1);
  EXPECT_EQ(pool->idle_bytes(), kMib + kMib / 8);
  const auto other = NewArray(kMib + kMib / 8);
  EXPECT_EQ(pool->Allocate(kMib + kMib / 8).get(), first);
  const OutputMemory smaller = pool->Allocate(kMib);
  EXPECT_NE(smaller.get(), first);
  EXPECT_EQ(pool->idle_bytes(), kMib + kMib / 8);
}

TEST(OutputPoolTest, ClosedPoolKeepsNothing) {
  const auto pool = OutputPool::Make(kLimit);
  OutputMemory held = pool->Allocate(kMib);
  GiveBackOne(*pool, kMib);
  pool->Close();
  EXPECT_EQ(pool->idle_bytes(), 0);
  held.reset();
  EXPECT_EQ(pool->idle_bytes(), 0);
}

TEST(OutputPoolTest, LimitOfNothingKeepsNothing) {
  const auto pool = OutputPool::Make(0);
  GiveBackOne(*pool, kMib);
  EXPECT_EQ(pool->idle_bytes(), 0);
}

TEST(OutputPoolTest, SmallPiecesAreNotKept) {
  const auto pool = OutputPool::Make(kLimit);
  GiveBackOne(*pool, OutputPool::kPooledBytesMin - 1);
  EXPECT_EQ(pool->idle_bytes(), 0);
  GiveBackOne(*pool, OutputPool::kPooledBytesMin);
  EXPECT_EQ(pool->idle_bytes(), OutputPool::kPooledBytesMin);
}

TEST(OutputPoolTest, PieceLargerThanTheLimitLeavesTheOthers) {
  const auto pool = OutputPool::Make(kLimit);
  GiveBackOne(*pool, kMib);
  GiveBackOne(*pool, kLimit + 1);
  EXPECT_EQ(pool->idle_bytes(), kMib);
}

TEST(OutputPoolTest, BeyondTheLimitTheLongestIdleGoFirst) {
  const auto pool = OutputPool::Make(kLimit);
  GiveBackOne(*pool, 2 * kMib);
  GiveBackOne(*pool, kMib);
  GiveBackOne(*pool, 4 * kMib);
  GiveBackOne(*pool, 3 * kMib);  // 10 MiB in all
  EXPECT_EQ(pool->idle_bytes(), kLimit);
  const OutputMemory dropped = pool->Allocate(2 * kMib);
  EXPECT_EQ(pool->idle_bytes(), kLimit);
  const OutputMemory kept = pool->Allocate(kMib);
  EXPECT_EQ(pool->idle_bytes(), kLimit - kMib);
}

// No piece is handed out twice: each keeps the bytes that its thread wrote.
TEST(OutputPoolTest, ThreadsTakeAndGiveBackAtOnce) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 2000;
  constexpr int64_t kSmall = OutputPool::kPooledBytesMin;
  const auto pool = OutputPool::Make(6 * kSmall);
  std::latch start(kThreads);
  std::vector<int> wrong(kThreads);
  const auto work = [&](int thread) {
    std::mt19937 random(static_cast<uint32_t>(thread));
    std::vector<OutputMemory> held(3);
    start.arrive_and_wait();
    for (int round = 0; round < kRounds; ++round) {
      const auto mark = static_cast<std::byte>(thread + 1);
      for (OutputMemory& piece : held) {
        const auto bytes = static_cast<size_t>(kSmall * (1 + random() % 2));
        piece = pool->Allocate(static_cast<int64_t>(bytes));
        piece[0] = piece[bytes - 1] = mark;
      }
      for (const OutputMemory& piece : held) {
        if (piece[0] != mark) ++wrong[static_cast<size_t>(thread)];
      }
      held[random() % 3].reset();
      if (pool->idle_bytes() > 6 * kSmall) ++wrong[static_cast<size_t>(thread)];
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back(work, thread);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(kThreads));
  EXPECT_GT(pool->idle_bytes(), 0);
}

}  // namespace
}  // namespace rope::client
