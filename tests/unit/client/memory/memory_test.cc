#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <latch>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "client/memory/arena_memory.h"
#include "client/memory/output_pool.h"
#include "client/memory/shared_memory.h"
#include "rope/arena.h"
#include "rope/client.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/client/fake_server.h"

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

std::shared_ptr<ArenaMemory> StagingMemory() {
  return std::make_shared<ArenaMemory>(
      SharedMemory::CreateMemfd(4096, SharedMemory::Use::kStaging).value());
}

TEST(StagedRunTest, RunIsFreeOnceItsOwnerGoes) {
  const auto memory = StagingMemory();
  {
    std::optional<StagedRun> run = StagedRun::Allocate(memory, 1000);
    ASSERT_TRUE(run.has_value());
    EXPECT_FALSE(StagedRun::Allocate(memory, 4096).has_value());
    StagedRun moved = *std::move(run);
    EXPECT_NE(moved.data(), nullptr);
    EXPECT_EQ(memory->used_bytes(), 1024);
    moved = StagedRun();
    EXPECT_EQ(memory->used_bytes(), 0);
  }
  EXPECT_EQ(memory->used_bytes(), 0);
  EXPECT_EQ(memory->lost_bytes(), 0);
}

TEST(StagedRunTest, RunIsLostUnlessTheServerSaidThatItIsOver) {
  const struct {
    StatusCode code;
    bool executed;
    bool lost;
  } cases[] = {
      {StatusCode::kInvalidArgument, false, false}, {StatusCode::kResourceExhausted, false, false},
      {StatusCode::kUnavailable, false, false},     {StatusCode::kUnavailable, true, true},
      {StatusCode::kDeadlineExceeded, true, true},  {StatusCode::kCancelled, true, true},
      {StatusCode::kInternal, false, true},         {StatusCode::kUnknown, false, true},
  };
  for (const auto& [code, executed, lost] : cases) {
    const auto memory = StagingMemory();
    StagedRun run = *StagedRun::Allocate(memory, 64);
    run.NoteFailure(Status(code, "x", {.may_have_executed = executed}));
    run.NoteFailure(Status(code, "x", {.may_have_executed = executed}));
    EXPECT_EQ(memory->lost_bytes(), lost ? 64 : 0) << Name(code);
    run = StagedRun();
    EXPECT_EQ(memory->used_bytes(), lost ? 64 : 0) << Name(code);
  }
}

TEST(StagedRunTest, NothingIsLostOfNothing) {
  StagedRun run;
  run.NoteFailure(Status(StatusCode::kUnavailable, "x", {.may_have_executed = true}));
  EXPECT_EQ(run.data(), nullptr);
}

class ArenaTest : public ::testing::Test {
 protected:
  Client Connected() const {
    return Client::Connect(server_.target(), {.arena_bytes = 4096}).value();
  }

  FakeServer server_;
};

TEST_F(ArenaTest, SlotGivesItsMemoryBackOnce) {
  const Arena arena = Connected().arena();
  Slot slot = arena.Allocate(100).value();
  EXPECT_EQ(slot.bytes(), 100);
  EXPECT_EQ(arena.used_bytes(), 128);
  Slot moved = std::move(slot);
  EXPECT_EQ(arena.used_bytes(), 128);
  moved = arena.Allocate(200).value();
  EXPECT_EQ(arena.used_bytes(), 256);
  moved = Slot();
  EXPECT_EQ(arena.used_bytes(), 0);
}

TEST_F(ArenaTest, SlotOutlivesItsClient) {
  std::optional<Client> client = Connected();
  const Slot slot = client->arena().Allocate(4096).value();
  client.reset();
  static_cast<char*>(slot.data())[4095] = 1;
}

TEST_F(ArenaTest, SizesAtTheBounds) {
  const Arena arena = Connected().arena();
  EXPECT_EQ(arena.Allocate(0).value().data(), nullptr);
  EXPECT_EQ(arena.Allocate(-1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(arena.Allocate(4097).status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(arena.Allocate(4096).ok());
}

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
  const auto pool = std::make_shared<OutputPool>(kLimit);
  const std::byte* first = GiveBackOne(*pool, kMib);
  EXPECT_EQ(pool->idle_bytes(), kMib);
  const auto other = NewArray(kMib);
  EXPECT_EQ(pool->Allocate(kMib).get(), first);
}

TEST(OutputPoolTest, SizesWithinAnEighthShareAPiece) {
  const auto pool = std::make_shared<OutputPool>(kLimit);
  const std::byte* first = GiveBackOne(*pool, kMib + 1);
  EXPECT_EQ(pool->idle_bytes(), kMib + kMib / 8);
  const auto other = NewArray(kMib + kMib / 8);
  EXPECT_EQ(pool->Allocate(kMib + kMib / 8).get(), first);
  const OutputMemory smaller = pool->Allocate(kMib);
  EXPECT_NE(smaller.get(), first);
  EXPECT_EQ(pool->idle_bytes(), kMib + kMib / 8);
}

TEST(OutputPoolTest, ClosedPoolKeepsNothing) {
  const auto pool = std::make_shared<OutputPool>(kLimit);
  OutputMemory held = pool->Allocate(kMib);
  GiveBackOne(*pool, kMib);
  pool->Close();
  EXPECT_EQ(pool->idle_bytes(), 0);
  held.reset();
  EXPECT_EQ(pool->idle_bytes(), 0);
}

TEST(OutputPoolTest, LimitOfNothingKeepsNothing) {
  const auto pool = std::make_shared<OutputPool>(0);
  GiveBackOne(*pool, kMib);
  EXPECT_EQ(pool->idle_bytes(), 0);
}

TEST(OutputPoolTest, SmallPiecesAreNotKept) {
  const auto pool = std::make_shared<OutputPool>(kLimit);
  GiveBackOne(*pool, OutputPool::kPooledBytesMin - 1);
  EXPECT_EQ(pool->idle_bytes(), 0);
  GiveBackOne(*pool, OutputPool::kPooledBytesMin);
  EXPECT_EQ(pool->idle_bytes(), OutputPool::kPooledBytesMin);
}

TEST(OutputPoolTest, PieceLargerThanTheLimitLeavesTheOthers) {
  const auto pool = std::make_shared<OutputPool>(kLimit);
  GiveBackOne(*pool, kMib);
  GiveBackOne(*pool, kLimit + 1);
  EXPECT_EQ(pool->idle_bytes(), kMib);
}

TEST(OutputPoolTest, BeyondTheLimitTheLongestIdleGoFirst) {
  const auto pool = std::make_shared<OutputPool>(kLimit);
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
  const auto pool = std::make_shared<OutputPool>(6 * kSmall);
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

TEST(SharedMemoryTest, MemfdIsWholePagesThatNobodyCanResize) {
  ASSERT_OK(memory, SharedMemory::CreateMemfd(5000, SharedMemory::Use::kArena));
  EXPECT_EQ((*memory)->bytes(), 2 * sysconf(_SC_PAGESIZE));
  EXPECT_NE(ftruncate((*memory)->fd(), 0), 0);
  EXPECT_NE(ftruncate((*memory)->fd(), 1 << 20), 0);
  (*memory)->data()[(*memory)->bytes() - 1] = std::byte{7};
  std::byte seen{};
  ASSERT_EQ(pread((*memory)->fd(), &seen, 1, (*memory)->bytes() - 1), 1);
  EXPECT_EQ(seen, std::byte{7});
}

TEST(SharedMemoryTest, PagesOfStagingMemoryAreMadeByTheirFirstUse) {
  const auto blocks_of = [](const SharedMemory& memory) {
    struct stat file {};
    EXPECT_EQ(fstat(memory.fd(), &file), 0);
    return file.st_blocks;
  };
  const auto arena = SharedMemory::CreateMemfd(kMib, SharedMemory::Use::kArena).value();
  EXPECT_EQ(blocks_of(*arena), kMib / 512);
  const auto staging = SharedMemory::CreateMemfd(kMib, SharedMemory::Use::kStaging).value();
  EXPECT_EQ(blocks_of(*staging), 0);
  staging->data()[0] = std::byte{1};
  EXPECT_EQ(blocks_of(*staging), sysconf(_SC_PAGESIZE) / 512);
  EXPECT_EQ(staging->bytes(), kMib);
}

TEST(SharedMemoryTest, SizesThatAreNoneAreRefused) {
  const auto code_of = [](int64_t bytes) {
    return SharedMemory::CreateMemfd(bytes, SharedMemory::Use::kArena).status().code();
  };
  EXPECT_EQ(code_of(0), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of(-1), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of(std::numeric_limits<int64_t>::max()), StatusCode::kResourceExhausted);
  EXPECT_EQ(code_of(int64_t{1} << 62), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace rope::client
