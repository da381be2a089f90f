#include "server/memory/regions.h"

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

constexpr uint64_t kAlice = 1;
constexpr uint64_t kBob = 2;

class RegionTableTest : public ::testing::Test {
 protected:
  RegionTableTest() : table_(Enabled()) { table_.OpenSession(kAlice); }

  static RegionTable::Options Enabled() {
    RegionTable::Options options;
    options.enabled = true;
    options.bytes_max = 5 * 4096;
    options.session_bytes_max = 3 * 4096;
    options.regions_max = 2;
    return options;
  }

  uint64_t MustRegister(uint64_t session, const SharedMemory& memory) {
    const auto id = Register(session, memory);
    EXPECT_THAT(id, IsOk());
    return id.value_or(0);
  }
  absl::StatusOr<uint64_t> Register(uint64_t session, const SharedMemory& memory) {
    return table_.RegisterMemfd(session, memory.Dup(), memory.bytes());
  }

  // A request that names the region `id`.
  std::shared_ptr<const Region> MustFind(uint64_t session, uint64_t id) {
    const auto region = table_.Find(session, id, "region");
    EXPECT_THAT(region, IsOk());
    return region.value_or(nullptr);
  }
  uint64_t MustAddId(uint64_t session, uint64_t id) {
    const auto other = table_.AddId(session, id);
    EXPECT_THAT(other, IsOk());
    return other.value_or(0);
  }
  // Sets `released` when the callback of RegionTable::Unregister runs.
  void Unregister(uint64_t session, uint64_t id, bool& released) {
    EXPECT_THAT(table_.Unregister(session, id, [&released] { released = true; }), IsOk());
  }

  RegionTable table_;
};

// It counts no bytes, is not listed, and stays mapped when the region goes.
TEST_F(RegionTableTest, MemoryOfTheProcessIsFoundByAddress) {
  table_.OpenSession(kBob);
  const std::string text = "any memory";
  {
    const uint64_t id = *table_.RegisterProcess(kAlice);
    const auto region = MustFind(kAlice, id);
    const auto offset = static_cast<uint64_t>(proto::ProcessMemoryOffset(text.data()));
    EXPECT_THAT(region->CheckSpan(offset, text.size(), "region"), IsOk());
    EXPECT_EQ(region->mapped() + offset, text.data());
    EXPECT_THAT(region->CheckSpan(kMost, 1, "region"), StatusIs(absl::StatusCode::kOutOfRange, _));
    EXPECT_THAT(table_.Find(kBob, id, "region"), StatusIs(absl::StatusCode::kNotFound, _));
    EXPECT_THAT(table_.List(kAlice), IsEmpty());
    EXPECT_EQ(table_.statistics().bytes, 0);
    table_.OpenSession(kAlice);
  }
  EXPECT_EQ(text, "any memory");
}

TEST_F(RegionTableTest, ConnectionsWithoutSessionHaveNoRegions) {
  EXPECT_THAT(Register(kBob, SharedMemory::Memfd(4096)), IsPrecondition("has closed"));
  EXPECT_THAT(table_.Find(kBob, 1, "region"), StatusIs(absl::StatusCode::kNotFound, _));
}

TEST_F(RegionTableTest, RegionInUseSurvivesUnregisterAndItsSession) {
  const uint64_t token = table_.OpenSession(kAlice);
  const SharedMemory memory = SharedMemory::Memfd(4096);
  const uint64_t id = MustRegister(kAlice, memory);
  auto held = table_.Find(kAlice, id, "region");
  ASSERT_THAT(held, IsOk());
  ASSERT_THAT(table_.Unregister(kAlice, id), IsOk());
  table_.CloseSession(token);
  memory.data()[17] = 'h';
  EXPECT_EQ((*held)->mapped()[17], 'h');
  EXPECT_EQ(table_.statistics().regions, 0);
  EXPECT_EQ(table_.statistics().bytes, 4096) << "bytes in use count until released";
  held->reset();
  EXPECT_EQ(table_.statistics().bytes, 0);
}

TEST_F(RegionTableTest, UnusedRegionIsReleasedAtOnce) {
  const uint64_t id = MustRegister(kAlice, SharedMemory::Memfd(4096));
  bool released = false;
  Unregister(kAlice, id, released);
  EXPECT_TRUE(released);
  EXPECT_THAT(table_.Unregister(kAlice, id, [] { FAIL() << "not an id of this session"; }),
              IsNotFound("region_id: got"));
}

TEST_F(RegionTableTest, ReleaseWaitsForTheLastRequestAndNobodyCanJoin) {
  const uint64_t id = MustRegister(kAlice, SharedMemory::Memfd(4096));
  std::vector<std::shared_ptr<const Region>> requests(3);
  for (auto& request : requests) request = MustFind(kAlice, id);
  bool released = false;
  Unregister(kAlice, id, released);
  for (auto& request : requests) {
    EXPECT_FALSE(released);
    EXPECT_THAT(table_.Find(kAlice, id, "region"), StatusIs(absl::StatusCode::kNotFound, _));
    request.reset();
  }
  EXPECT_TRUE(released);
  EXPECT_EQ(table_.statistics().bytes, 0) << "the memory is released first";
}

TEST_F(RegionTableTest, OtherIdIsTheSameMemoryAndOutlivesTheFirst) {
  table_.OpenSession(kBob);
  const uint64_t first = MustRegister(kAlice, SharedMemory::Memfd(4096));
  const uint64_t second = MustAddId(kAlice, first);
  EXPECT_NE(first, second);
  EXPECT_EQ(MustAddId(kAlice, first), second) << "the same id for a repeated call";
  EXPECT_EQ(MustFind(kAlice, first), MustFind(kAlice, second)) << "one region, for overlap checks";
  EXPECT_EQ(table_.statistics().bytes, 4096) << "counted once";
  EXPECT_THAT(table_.List(kAlice), SizeIs(2));
  EXPECT_THAT(table_.AddId(kBob, first), StatusIs(absl::StatusCode::kNotFound, _));
  EXPECT_THAT(table_.AddId(kAlice, 0), StatusIs(absl::StatusCode::kNotFound, _));
  ASSERT_THAT(table_.Unregister(kAlice, first), IsOk());
  EXPECT_THAT(table_.Find(kAlice, first, "region"), StatusIs(absl::StatusCode::kNotFound, _));
  EXPECT_NE(MustFind(kAlice, second), nullptr);
  EXPECT_THAT(table_.AddId(kAlice, first), StatusIs(absl::StatusCode::kNotFound, _));
  const uint64_t third = MustAddId(kAlice, second);
  EXPECT_NE(third, first);
  ASSERT_THAT(table_.Unregister(kAlice, third), IsOk());
  EXPECT_NE(MustAddId(kAlice, second), third) << "ids are never reused";
}

TEST_F(RegionTableTest, RequestsThatNameTheOtherIdAreNotWaitedFor) {
  const uint64_t first = MustRegister(kAlice, SharedMemory::Memfd(4096));
  auto before = MustFind(kAlice, first);
  const uint64_t second = MustAddId(kAlice, first);
  const auto after = MustFind(kAlice, second);
  bool released = false;
  Unregister(kAlice, first, released);
  EXPECT_FALSE(released);
  before.reset();
  EXPECT_TRUE(released);
  EXPECT_NE(after->mapped(), nullptr);
}

TEST_F(RegionTableTest, ReleaseWaitsForIdsThatWereUnregisteredBefore) {
  const uint64_t first = MustRegister(kAlice, SharedMemory::Memfd(4096));
  auto request = MustFind(kAlice, first);
  const uint64_t second = MustAddId(kAlice, first);
  bool first_released = false;
  bool second_released = false;
  Unregister(kAlice, first, first_released);
  Unregister(kAlice, second, second_released);
  EXPECT_FALSE(second_released) << "a request still uses the memory by the first id";
  request.reset();
  EXPECT_TRUE(first_released);
  EXPECT_TRUE(second_released);
}

TEST_F(RegionTableTest, IdsInUseCountSoThatWhoWaitsIsBounded) {
  const uint64_t first = MustRegister(kAlice, SharedMemory::Memfd(4096));
  auto request = MustFind(kAlice, first);
  const uint64_t second = MustAddId(kAlice, first);
  bool released = false;
  Unregister(kAlice, first, released);
  EXPECT_THAT(table_.AddId(kAlice, second), IsExhausted("number 3, want at most 2"));
  request.reset();
  EXPECT_TRUE(released);
  EXPECT_THAT(table_.AddId(kAlice, second), IsOk());
}

TEST_F(RegionTableTest, ReleaseIsHeardOfASessionThatHasClosed) {
  const uint64_t token = table_.OpenSession(kAlice);
  const uint64_t id = MustRegister(kAlice, SharedMemory::Memfd(4096));
  auto request = MustFind(kAlice, id);
  bool released = false;
  Unregister(kAlice, id, released);
  table_.CloseSession(token);
  EXPECT_FALSE(released);
  request.reset();
  EXPECT_TRUE(released);
}

// The callback may call the table: no lock is held.
TEST_F(RegionTableTest, ReleaseRunsOnceAndUnderNoLockWhateverThreadIsLast) {
  const SharedMemory memory = SharedMemory::Memfd(4096);
  for (int round = 0; round < 200; ++round) {
    uint64_t id = MustRegister(kAlice, memory);
    std::atomic<int> released = 0;
    std::vector<std::thread> requests;
    for (int i = 0; i < 3; ++i) {
      requests.emplace_back([request = MustFind(kAlice, id)]() mutable { request.reset(); });
    }
    EXPECT_THAT(table_.Unregister(kAlice, id,
                                  [&] {
                                    EXPECT_THAT(table_.List(kAlice), IsEmpty());
                                    ++released;
                                  }),
                IsOk());
    for (std::thread& request : requests) request.join();
    EXPECT_EQ(released, 1);
  }
}

TEST_F(RegionTableTest, NumberThatComesBackIsAnotherSession) {
  const uint64_t first = table_.OpenSession(kAlice);
  const uint64_t id = MustRegister(kAlice, SharedMemory::Memfd(4096));
  const uint64_t second = table_.OpenSession(kAlice);
  EXPECT_NE(first, second);
  EXPECT_THAT(table_.Find(kAlice, id, "region"), StatusIs(absl::StatusCode::kNotFound, _));
  EXPECT_EQ(table_.statistics().bytes, 0);
  const uint64_t mine = MustRegister(kAlice, SharedMemory::Memfd(4096));
  table_.CloseSession(first);  // a late close of the old session
  EXPECT_THAT(table_.Find(kAlice, mine, "region"), IsOk());
}

TEST_F(RegionTableTest, QuotasCountRegionsAndBytes) {
  table_.OpenSession(kBob);
  EXPECT_THAT(Register(kAlice, SharedMemory::Memfd(4 * 4096)),
              IsExhausted("--session_memory_bytes"));
  const uint64_t id = MustRegister(kAlice, SharedMemory::Memfd(3 * 4096));
  EXPECT_THAT(Register(kBob, SharedMemory::Memfd(3 * 4096)), IsExhausted("--shared_memory_bytes"));
  MustRegister(kBob, SharedMemory::Memfd(2 * 4096));
  EXPECT_EQ(table_.statistics().bytes, 5 * 4096);
  ASSERT_THAT(table_.Unregister(kAlice, id), IsOk());
  MustRegister(kAlice, SharedMemory::Memfd(4096));
  MustRegister(kAlice, SharedMemory::Memfd(4096));
  EXPECT_THAT(Register(kAlice, SharedMemory::Memfd(4096)), IsExhausted("number 3, want at most 2"));
  EXPECT_EQ(table_.statistics().bytes, 4 * 4096) << "a refused region costs nothing";
  EXPECT_EQ(table_.statistics().rejected, 3);
}

}  // namespace
}  // namespace rope::server
