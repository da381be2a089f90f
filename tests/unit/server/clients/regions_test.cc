#include "server/clients/regions.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/ipc/process_memory.h"
#include "tests/support/shared_memory.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_clients.h"

namespace rope::server {
namespace {

using ::rope::testing::SharedMemory;
using ::testing::_;

constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();

TEST(RegionTest, MemfdThatCouldShrinkIsRefused) {
  for (const int seals : {0, F_SEAL_GROW, F_SEAL_SEAL}) {
    const SharedMemory memory = SharedMemory::Memfd(4096, seals);
    EXPECT_THAT(Region::MapMemfd(memory.Dup(), 4096), IsPrecondition("F_SEAL_SHRINK"));
  }
  const SharedMemory both = SharedMemory::Memfd(4096, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_THAT(Region::MapMemfd(both.Dup(), 4096), IsOk());
}

TEST(RegionTest, MemfdThatCannotBeWrittenIsRefused) {
  proto::FileDescriptor file(memfd_create("rope_test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(file.get(), 4096), 0);
  ASSERT_EQ(fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_WRITE), 0);
  EXPECT_THAT(Region::MapMemfd(std::move(file), 4096), IsPrecondition("read and write"));
}

TEST(RegionTest, SizeMustBeThatOfTheMemfd) {
  const SharedMemory memory = SharedMemory::Memfd(4096);
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{4095}, uint64_t{4097}, kMost}) {
    EXPECT_THAT(Region::MapMemfd(memory.Dup(), bytes), IsPrecondition("for one of 4096"));
  }
}

TEST(RegionTest, OtherDescriptorsAreNoMemfd) {
  for (const char* path : {"/dev/null", "/dev/zero", "/proc/self/exe", "/"}) {
    proto::FileDescriptor file(open(path, O_RDONLY | O_CLOEXEC));
    EXPECT_THAT(Region::MapMemfd(std::move(file), 4096), IsPrecondition("kind of file")) << path;
  }
  EXPECT_THAT(Region::MapMemfd(proto::FileDescriptor(), 4096),
              StatusIs(absl::StatusCode::kFailedPrecondition, _));
}

TEST(RegionTest, HugePagesThatMayRunOutAreRefused) {
  proto::FileDescriptor file(
      memfd_create("rope_test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB));
  if (!file.ok()) GTEST_SKIP() << "this system has no huge pages";
  const uint64_t bytes = 2 << 20;
  if (ftruncate(file.get(), bytes) != 0) GTEST_SKIP() << "huge pages are of another size";
  ASSERT_EQ(fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_THAT(Region::MapMemfd(std::move(file), bytes), IsPrecondition("kind of file"));
}

TEST(RegionTest, SpansEndWithinTheRegion) {
  const SharedMemory memory = SharedMemory::Memfd(4096);
  auto region = Region::MapMemfd(memory.Dup(), 4096);
  ASSERT_THAT(region, IsOk());
  EXPECT_THAT((*region)->CheckSpan(4096, 0, "x"), IsOk());
  EXPECT_THAT((*region)->CheckSpan(0, 4096, "x"), IsOk());
  for (const auto& [offset, bytes] : {std::pair{uint64_t{4097}, uint64_t{0}},
                                      {1, 4096},
                                      {kMost, 1},
                                      {kMost, kMost},
                                      {8, kMost}}) {
    EXPECT_THAT((*region)->CheckSpan(offset, bytes, "tensors[0].array.region"),
                IsOutOfRange("tensors[0].array.region: got"));
  }
}

class RegionsTest : public ::testing::Test {
 protected:
  static absl::StatusOr<uint64_t> Register(Regions& regions, const SharedMemory& memory) {
    return regions.RegisterMemfd(memory.Dup(), memory.bytes());
  }
  static uint64_t MustRegister(Regions& regions, const SharedMemory& memory) {
    const auto id = Register(regions, memory);
    EXPECT_THAT(id, IsOk());
    return id.value_or(0);
  }
  // A request that names the region `id`.
  static std::shared_ptr<const Region> MustFind(const Regions& regions, uint64_t id) {
    const auto region = regions.Find(id, "region");
    EXPECT_THAT(region, IsOk());
    return region.value_or(nullptr);
  }
  static uint64_t MustAddId(Regions& regions, uint64_t id) {
    const auto other = regions.AddId(id);
    EXPECT_THAT(other, IsOk());
    return other.value_or(0);
  }
  // Sets `released` when the callback of Regions::Unregister runs.
  static void Unregister(Regions& regions, uint64_t id, bool& released) {
    EXPECT_THAT(regions.Unregister(id, [&released] { released = true; }), IsOk());
  }

  testing::TestClients clients_{{.region_bytes = 5 * 4096},
                                {.enabled = true, .session_bytes_max = 3 * 4096, .regions_max = 2}};
  Regions& alice_ = clients_.Of(1).regions();
  Regions& bob_ = clients_.Of(2).regions();
};

// It counts no bytes, is not listed, and stays mapped when the region goes.
TEST_F(RegionsTest, MemoryOfTheProcessIsFoundByAddress) {
  const std::string text = "any memory";
  {
    const uint64_t id = *alice_.RegisterProcess();
    const auto region = MustFind(alice_, id);
    const auto offset = static_cast<uint64_t>(proto::ProcessMemoryOffset(text.data()));
    EXPECT_THAT(region->CheckSpan(offset, text.size(), "region"), IsOk());
    EXPECT_EQ(region->mapped() + offset, text.data());
    EXPECT_THAT(region->CheckSpan(kMost, 1, "region"), StatusIs(absl::StatusCode::kOutOfRange, _));
    EXPECT_THAT(bob_.Find(id, "region"), StatusIs(absl::StatusCode::kNotFound, _));
    EXPECT_THAT(alice_.List(), IsEmpty());
    EXPECT_EQ(clients_.region_bytes(), 0);
    alice_.Close();
  }
  EXPECT_EQ(text, "any memory");
}

TEST_F(RegionsTest, RegionInUseSurvivesUnregisterAndItsConnection) {
  const SharedMemory memory = SharedMemory::Memfd(4096);
  const uint64_t id = MustRegister(alice_, memory);
  auto held = alice_.Find(id, "region");
  ASSERT_THAT(held, IsOk());
  ASSERT_THAT(alice_.Unregister(id), IsOk());
  alice_.Close();
  memory.data()[17] = 'h';
  EXPECT_EQ((*held)->mapped()[17], 'h');
  EXPECT_EQ(clients_.totals.regions, 0);
  EXPECT_EQ(clients_.region_bytes(), 4096) << "bytes in use count until released";
  held->reset();
  EXPECT_EQ(clients_.region_bytes(), 0);
}

TEST_F(RegionsTest, UnusedRegionIsReleasedAtOnce) {
  const uint64_t id = MustRegister(alice_, SharedMemory::Memfd(4096));
  bool released = false;
  Unregister(alice_, id, released);
  EXPECT_TRUE(released);
  EXPECT_THAT(alice_.Unregister(id, [] { FAIL() << "not an id of this connection"; }),
              IsNotFound("region_id: got"));
}

TEST_F(RegionsTest, ReleaseWaitsForTheLastRequestAndNobodyCanJoin) {
  const uint64_t id = MustRegister(alice_, SharedMemory::Memfd(4096));
  std::vector<std::shared_ptr<const Region>> requests(3);
  for (auto& request : requests) request = MustFind(alice_, id);
  bool released = false;
  Unregister(alice_, id, released);
  for (auto& request : requests) {
    EXPECT_FALSE(released);
    EXPECT_THAT(alice_.Find(id, "region"), StatusIs(absl::StatusCode::kNotFound, _));
    request.reset();
  }
  EXPECT_TRUE(released);
  EXPECT_EQ(clients_.region_bytes(), 0) << "the memory is released first";
}

TEST_F(RegionsTest, OtherIdIsTheSameMemoryAndOutlivesTheFirst) {
  const uint64_t first = MustRegister(alice_, SharedMemory::Memfd(4096));
  const uint64_t second = MustAddId(alice_, first);
  EXPECT_NE(first, second);
  EXPECT_EQ(MustAddId(alice_, first), second) << "the same id for a repeated call";
  EXPECT_EQ(MustFind(alice_, first), MustFind(alice_, second)) << "one region, for overlap checks";
  EXPECT_EQ(clients_.region_bytes(), 4096) << "counted once";
  EXPECT_THAT(alice_.List(), SizeIs(2));
  EXPECT_THAT(bob_.AddId(first), StatusIs(absl::StatusCode::kNotFound, _));
  EXPECT_THAT(alice_.AddId(0), StatusIs(absl::StatusCode::kNotFound, _));
  ASSERT_THAT(alice_.Unregister(first), IsOk());
  EXPECT_THAT(alice_.Find(first, "region"), StatusIs(absl::StatusCode::kNotFound, _));
  EXPECT_NE(MustFind(alice_, second), nullptr);
  EXPECT_THAT(alice_.AddId(first), StatusIs(absl::StatusCode::kNotFound, _));
  const uint64_t third = MustAddId(alice_, second);
  EXPECT_NE(third, first);
  ASSERT_THAT(alice_.Unregister(third), IsOk());
  EXPECT_NE(MustAddId(alice_, second), third) << "ids are never reused";
}

TEST_F(RegionsTest, RequestsThatNameTheOtherIdAreNotWaitedFor) {
  const uint64_t first = MustRegister(alice_, SharedMemory::Memfd(4096));
  auto before = MustFind(alice_, first);
  const uint64_t second = MustAddId(alice_, first);
  const auto after = MustFind(alice_, second);
  bool released = false;
  Unregister(alice_, first, released);
  EXPECT_FALSE(released);
  before.reset();
  EXPECT_TRUE(released);
  EXPECT_NE(after->mapped(), nullptr);
}

TEST_F(RegionsTest, ReleaseWaitsForIdsThatWereUnregisteredBefore) {
  const uint64_t first = MustRegister(alice_, SharedMemory::Memfd(4096));
  auto request = MustFind(alice_, first);
  const uint64_t second = MustAddId(alice_, first);
  bool first_released = false;
  bool second_released = false;
  Unregister(alice_, first, first_released);
  Unregister(alice_, second, second_released);
  EXPECT_FALSE(second_released) << "a request still uses the memory by the first id";
  request.reset();
  EXPECT_TRUE(first_released);
  EXPECT_TRUE(second_released);
}

TEST_F(RegionsTest, IdsInUseCountSoThatWhoWaitsIsBounded) {
  const uint64_t first = MustRegister(alice_, SharedMemory::Memfd(4096));
  auto request = MustFind(alice_, first);
  const uint64_t second = MustAddId(alice_, first);
  bool released = false;
  Unregister(alice_, first, released);
  EXPECT_THAT(alice_.AddId(second), IsExhausted("number 3, want at most 2"));
  request.reset();
  EXPECT_TRUE(released);
  EXPECT_THAT(alice_.AddId(second), IsOk());
}

TEST_F(RegionsTest, ReleaseIsHeardOfAConnectionThatHasEnded) {
  const uint64_t id = MustRegister(alice_, SharedMemory::Memfd(4096));
  auto request = MustFind(alice_, id);
  bool released = false;
  Unregister(alice_, id, released);
  alice_.Close();
  EXPECT_FALSE(released);
  request.reset();
  EXPECT_TRUE(released);
}

// The callback may call Regions: no lock is held.
TEST_F(RegionsTest, ReleaseRunsOnceAndUnderNoLockWhateverThreadIsLast) {
  const SharedMemory memory = SharedMemory::Memfd(4096);
  for (int round = 0; round < 200; ++round) {
    uint64_t id = MustRegister(alice_, memory);
    std::atomic<int> released = 0;
    std::vector<std::thread> requests;
    for (int i = 0; i < 3; ++i) {
      requests.emplace_back([request = MustFind(alice_, id)]() mutable { request.reset(); });
    }
    EXPECT_THAT(alice_.Unregister(id,
                                  [&] {
                                    EXPECT_THAT(alice_.List(), IsEmpty());
                                    ++released;
                                  }),
                IsOk());
    for (std::thread& request : requests) request.join();
    EXPECT_EQ(released, 1);
  }
}

TEST_F(RegionsTest, QuotasCountRegionsAndBytes) {
  EXPECT_THAT(Register(alice_, SharedMemory::Memfd(4 * 4096)),
              IsExhausted("--session_memory_bytes"));
  const uint64_t id = MustRegister(alice_, SharedMemory::Memfd(3 * 4096));
  EXPECT_THAT(Register(bob_, SharedMemory::Memfd(3 * 4096)), IsExhausted("--shared_memory_bytes"));
  MustRegister(bob_, SharedMemory::Memfd(2 * 4096));
  EXPECT_EQ(clients_.region_bytes(), 5 * 4096);
  ASSERT_THAT(alice_.Unregister(id), IsOk());
  MustRegister(alice_, SharedMemory::Memfd(4096));
  MustRegister(alice_, SharedMemory::Memfd(4096));
  EXPECT_THAT(Register(alice_, SharedMemory::Memfd(4096)), IsExhausted("number 3, want at most 2"));
  EXPECT_EQ(clients_.region_bytes(), 4 * 4096) << "a refused region costs nothing";
  EXPECT_EQ(clients_.totals.rejected, 3);
}

}  // namespace
}  // namespace rope::server
