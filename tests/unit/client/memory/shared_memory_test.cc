#include "client/memory/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <limits>

#include "tests/support/status_matchers.h"

namespace rope::client {
namespace {

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
  constexpr int64_t kBytes = 1 << 20;
  const auto blocks_of = [](const SharedMemory& memory) {
    struct stat file {};
    EXPECT_EQ(fstat(memory.fd(), &file), 0);
    return file.st_blocks;
  };
  const auto arena = SharedMemory::CreateMemfd(kBytes, SharedMemory::Use::kArena).value();
  EXPECT_EQ(blocks_of(*arena), kBytes / 512);
  const auto staging = SharedMemory::CreateMemfd(kBytes, SharedMemory::Use::kStaging).value();
  EXPECT_EQ(blocks_of(*staging), 0);
  staging->data()[0] = std::byte{1};
  EXPECT_EQ(blocks_of(*staging), sysconf(_SC_PAGESIZE) / 512);
  EXPECT_EQ(staging->bytes(), kBytes);
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
