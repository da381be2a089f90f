#include "server/clients/buffer_pool.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

namespace rope::server {
namespace {

TEST(BufferPoolTest, MemoryIsReused) {
  BufferPool pool(1 << 20);
  PooledBuffer first = pool.Allocate(5000);
  char* const data = first.data();
  EXPECT_EQ(pool.kept_bytes(), 0);
  first = PooledBuffer();
  EXPECT_EQ(pool.kept_bytes(), 8192);
  const PooledBuffer second = pool.Allocate(8192);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(pool.kept_bytes(), 0);
}

TEST(BufferPoolTest, BuffersAreAtMostAnEighthLargerThanAsked) {
  int64_t before = 0;
  for (int64_t size = 1; size < 100 << 20; size += size / 13 + 1000) {
    BufferPool pool(int64_t{1} << 30);
    { const PooledBuffer buffer = pool.Allocate(size); }
    const int64_t used = pool.kept_bytes();
    EXPECT_GE(used, size);
    EXPECT_LE(used, size + size / 8 + 4096) << size;
    EXPECT_GE(used, before) << size;
    before = used;
  }
}

int64_t PagesIn(const PooledBuffer& buffer) {
  std::vector<unsigned char> in(static_cast<size_t>(buffer.size() / 4096));
  EXPECT_EQ(mincore(buffer.data(), static_cast<size_t>(buffer.size()), in.data()), 0);
  return std::count_if(in.begin(), in.end(), [](unsigned char page) { return (page & 1) != 0; });
}

TEST(BufferPoolTest, PagesOfALargeBufferComeAsItIsFilled) {
  BufferPool pool(int64_t{64} << 20);
  constexpr int64_t kBytes = 2 * BufferPool::kPopulatedBytes;
  PooledBuffer small = pool.Allocate(BufferPool::kPopulatedBytes);
  EXPECT_EQ(PagesIn(small), BufferPool::kPopulatedBytes / 4096);
  {
    PooledBuffer buffer = pool.Allocate(kBytes);
    EXPECT_EQ(PagesIn(buffer), 0);
    buffer.Populate(10'000);
    EXPECT_EQ(PagesIn(buffer), 3);
    buffer.Populate(5'000);
    EXPECT_EQ(PagesIn(buffer), 3);
    buffer.Populate(kBytes);
    EXPECT_EQ(PagesIn(buffer), kBytes / 4096);
  }
  EXPECT_EQ(PagesIn(pool.Allocate(kBytes)), kBytes / 4096) << "it is reused";
}

TEST(BufferPoolTest, EveryByteIsOursAndAligned) {
  BufferPool pool(0);
  for (const int64_t size : {1, 63, 4095, 4096, 4097, 100000, 1 << 20}) {
    const PooledBuffer buffer = pool.Allocate(size);
    EXPECT_EQ(buffer.size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0U);
    std::memset(buffer.data(), 1, static_cast<size_t>(size));
  }
}

TEST(BufferPoolTest, KeepsNoMoreThanItsCap) {
  BufferPool pool(8192);
  {
    const PooledBuffer a = pool.Allocate(4096);
    const PooledBuffer b = pool.Allocate(4096);
    const PooledBuffer c = pool.Allocate(4096);
    const PooledBuffer d = pool.Allocate(1 << 20);
  }
  EXPECT_EQ(pool.kept_bytes(), 8192);
}

TEST(BufferPoolTest, SizeZeroTakesNothing) {
  BufferPool pool(1 << 20);
  { const PooledBuffer empty = pool.Allocate(0); }
  EXPECT_EQ(pool.kept_bytes(), 0);
  EXPECT_EQ(pool.Allocate(0).data(), nullptr);
}

TEST(BufferPoolTest, BufferOutlivesThePool) {
  std::optional<BufferPool> pool(1 << 20);
  PooledBuffer buffer = pool->Allocate(4096);
  pool.reset();
  std::memset(buffer.data(), 1, 4096);
  PooledBuffer moved = std::move(buffer);
  EXPECT_EQ(moved.data()[4095], 1);
}

}  // namespace
}  // namespace rope::server
