#include "client/memory/arena_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace rope::client {
namespace {

constexpr int64_t kBytes = 8192;

std::unique_ptr<SharedMemory> NewMemory() {
  return SharedMemory::CreateMemfd(kBytes, SharedMemory::Use::kArena).value();
}

TEST(ArenaMemoryTest, MemoryIsAlignedAndUsedAgain) {
  ArenaMemory arena(NewMemory());
  std::byte* first = arena.Allocate(1).value();
  std::byte* second = arena.Allocate(65).value();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % ArenaMemory::kAlignment, 0u);
  EXPECT_EQ(second - first, 64);
  EXPECT_EQ(arena.used_bytes(), 64 + 128);
  arena.GiveBack(first, 1);
  EXPECT_EQ(arena.Allocate(64).value(), first);
}

TEST(ArenaMemoryTest, WholeMemoryCanBeTakenAndNoMore) {
  ArenaMemory arena(NewMemory());
  std::byte* all = arena.Allocate(kBytes).value();
  EXPECT_EQ(arena.Allocate(1).status().code(), StatusCode::kResourceExhausted);
  arena.GiveBack(all, kBytes);
  EXPECT_EQ(arena.Allocate(kBytes + 1).status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(arena.Allocate(kBytes).ok());
}

TEST(ArenaMemoryTest, NeighboursThatAreFreeAreOneAgain) {
  for (const std::vector<size_t>& order :
       {std::vector<size_t>{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}}) {
    ArenaMemory arena(NewMemory());
    std::vector<std::byte*> parts;
    for (int i = 0; i < 3; ++i) parts.push_back(arena.Allocate(kBytes / 4).value());
    for (const size_t part : order) arena.GiveBack(parts[part], kBytes / 4);
    EXPECT_EQ(arena.used_bytes(), 0);
    EXPECT_TRUE(arena.Allocate(kBytes).ok());
  }
}

TEST(ArenaMemoryTest, OnlyWhatLiesWhollyInsideHasAnOffset) {
  ArenaMemory arena(NewMemory());
  std::byte* begin = arena.Allocate(kBytes).value();
  EXPECT_EQ(arena.OffsetOf(begin, kBytes), 0);
  EXPECT_EQ(arena.OffsetOf(begin + 100, 1), 100);
  EXPECT_EQ(arena.OffsetOf(begin + kBytes - 1, 2), std::nullopt);
  EXPECT_EQ(arena.OffsetOf(begin, kBytes + 1), std::nullopt);
  EXPECT_EQ(arena.OffsetOf(begin - 1, 1), std::nullopt);
  EXPECT_EQ(arena.OffsetOf(&arena, 1), std::nullopt);
}

TEST(ArenaMemoryTest, WhatIsLostIsNeverFreeAgain) {
  ArenaMemory arena(NewMemory());
  std::byte* const first = arena.Allocate(100).value();
  arena.Lose(100);
  EXPECT_EQ(arena.lost_bytes(), 128);
  EXPECT_EQ(arena.used_bytes(), 128);
  EXPECT_EQ(arena.Allocate(1).value(), first + 128);
  EXPECT_FALSE(arena.Allocate(kBytes - 128).ok());
}

TEST(ArenaMemoryTest, WithoutMemoryThereIsNothing) {
  ArenaMemory arena(nullptr);
  EXPECT_EQ(arena.Allocate(1).status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(arena.OffsetOf(&arena, 1), std::nullopt);
  EXPECT_EQ(arena.capacity_bytes(), 0);
}

TEST(ArenaMemoryTest, ThreadsGetMemoryOfTheirOwn) {
  ArenaMemory arena(NewMemory());
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&arena, thread] {
      std::minstd_rand random(static_cast<unsigned>(thread));
      const auto mark = static_cast<std::byte>(thread + 1);
      for (int i = 0; i < 2000; ++i) {
        const auto bytes = static_cast<int64_t>(1 + random() % 1500);
        const Result<std::byte*> data = arena.Allocate(bytes);
        if (!data.ok()) continue;
        std::fill_n(*data, bytes, mark);
        EXPECT_EQ(std::count(*data, *data + bytes, mark), bytes);
        arena.GiveBack(*data, bytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(arena.used_bytes(), 0);
  EXPECT_TRUE(arena.Allocate(kBytes).ok());
}

}  // namespace
}  // namespace rope::client
