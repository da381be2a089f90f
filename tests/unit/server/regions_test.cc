#include "server/regions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "tests/support/shared_memory.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::IsOk;
using ::rope::testing::SharedMemory;
using ::rope::testing::StatusIs;
using ::testing::_;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kAlice = 1;
constexpr uint64_t kBob = 2;
constexpr RegionTable::Peer kHere = {.local = true};

class RegionTableTest : public ::testing::Test {
 protected:
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
    return memory.name().empty() ? table_.RegisterMemfd(session, memory.Dup(), memory.bytes())
                                 : table_.RegisterPosix(session, memory.name(), 0, memory.bytes());
  }

  RegionTable table_{Enabled()};
};

TEST_F(RegionTableTest, OffByDefaultAndSaysWhichFlag) {
  RegionTable table{RegionTable::Options()};
  table.OpenSession(kAlice, kHere);
  EXPECT_THAT(table.RegisterMemfd(kAlice, SharedMemory::Memfd(4096).Dup(), 4096),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--enable_shared_memory")));
  EXPECT_EQ(table.statistics().rejected, 0);
}

TEST_F(RegionTableTest, SessionsFindTheirOwnRegionsAlone) {
  table_.OpenSession(kAlice, kHere);
  table_.OpenSession(kBob, kHere);
  const SharedMemory memory = SharedMemory::Memfd(4096);
  const uint64_t id = MustRegister(kAlice, memory);
  EXPECT_THAT(table_.Find(kAlice, id, "region"), IsOk());
  EXPECT_THAT(table_.Find(kBob, id, "tensors[0].array.region"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("tensors[0].array.region: got")));
  EXPECT_THAT(table_.Unregister(kBob, id), StatusIs(absl::StatusCode::kNotFound, _));
  EXPECT_THAT(table_.List(kBob), IsEmpty());
  const auto mine = table_.List(kAlice);
  ASSERT_THAT(mine, SizeIs(1));
  EXPECT_EQ(mine[0].id, id);
  EXPECT_EQ(mine[0].bytes, 4096u);
  EXPECT_EQ(mine[0].kind, Region::Kind::kMemfd);
}

TEST_F(RegionTableTest, ConnectionsWithoutSessionHaveNoRegions) {
  EXPECT_THAT(Register(kAlice, SharedMemory::Memfd(4096)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("closing")));
  EXPECT_THAT(table_.Find(kAlice, 1, "region"), StatusIs(absl::StatusCode::kNotFound, _));
}

TEST_F(RegionTableTest, ClientsElsewhereMayNotRegister) {
  table_.OpenSession(kAlice, {.local = false});
  EXPECT_THAT(Register(kAlice, SharedMemory::Posix(4096)),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("on the server's host")));
}

TEST_F(RegionTableTest, ObjectsMustBeOfTheUserAtTheOtherEnd) {
  table_.OpenSession(kAlice, {.local = true, .uid = geteuid() + 1});
  const SharedMemory memory = SharedMemory::Posix(4096);
  EXPECT_THAT(Register(kAlice, memory), StatusIs(absl::StatusCode::kPermissionDenied, _));
  table_.OpenSession(kAlice, {.local = true, .uid = geteuid()});
  EXPECT_THAT(Register(kAlice, memory), IsOk());
}

TEST_F(RegionTableTest, SameObjectTwiceAlreadyExists) {
  table_.OpenSession(kAlice, kHere);
  table_.OpenSession(kBob, kHere);
  const SharedMemory memory = SharedMemory::Posix(4096);
  const uint64_t id = MustRegister(kAlice, memory);
  EXPECT_THAT(Register(kAlice, memory), StatusIs(absl::StatusCode::kAlreadyExists, _));
  EXPECT_THAT(table_.RegisterPosix(kAlice, memory.name(), 64, 64),
              StatusIs(absl::StatusCode::kAlreadyExists, _));
  EXPECT_THAT(Register(kBob, memory), IsOk()) << "another session's affair";
  ASSERT_THAT(table_.Unregister(kAlice, id), IsOk());
  EXPECT_THAT(Register(kAlice, memory), IsOk());
}

TEST_F(RegionTableTest, IdsAreNeverUsedAgain) {
  table_.OpenSession(kAlice, kHere);
  std::set<uint64_t> ids;
  const SharedMemory memory = SharedMemory::Memfd(4096);
  for (int i = 0; i < 100; ++i) {
    const uint64_t id = MustRegister(kAlice, memory);
    EXPECT_TRUE(ids.insert(id).second);
    EXPECT_THAT(table_.Unregister(kAlice, id), IsOk());
    EXPECT_THAT(table_.Unregister(kAlice, id), StatusIs(absl::StatusCode::kNotFound, _));
  }
}

TEST_F(RegionTableTest, RegionInUseSurvivesUnregisterAndItsSession) {
  const uint64_t token = table_.OpenSession(kAlice, kHere);
  const SharedMemory memory = SharedMemory::Memfd(4096);
  const uint64_t id = MustRegister(kAlice, memory);
  auto held = table_.Find(kAlice, id, "region");
  ASSERT_THAT(held, IsOk());
  ASSERT_THAT(table_.Unregister(kAlice, id), IsOk());
  table_.CloseSession(token);
  memory.data()[17] = 'h';
  EXPECT_EQ((*held)->mapped()[17], 'h');
  EXPECT_EQ(table_.statistics().regions, 0);
  EXPECT_EQ(table_.statistics().bytes, 4096) << "held bytes count until they are given back";
  held->reset();
  EXPECT_EQ(table_.statistics().bytes, 0);
}

TEST_F(RegionTableTest, ClosedSessionTakesItsRegionsAlong) {
  const uint64_t token = table_.OpenSession(kAlice, kHere);
  table_.OpenSession(kBob, kHere);
  const uint64_t id = MustRegister(kAlice, SharedMemory::Memfd(4096));
  MustRegister(kBob, SharedMemory::Memfd(8192));
  table_.CloseSession(token);
  table_.CloseSession(token);
  EXPECT_THAT(table_.Find(kAlice, id, "region"), StatusIs(absl::StatusCode::kNotFound, _));
  EXPECT_EQ(table_.statistics().regions, 1);
  EXPECT_EQ(table_.statistics().bytes, 8192);
}

TEST_F(RegionTableTest, NumberThatComesBackIsAnotherSession) {
  const uint64_t first = table_.OpenSession(kAlice, kHere);
  const uint64_t id = MustRegister(kAlice, SharedMemory::Memfd(4096));
  const uint64_t second = table_.OpenSession(kAlice, kHere);
  EXPECT_NE(first, second);
  EXPECT_THAT(table_.Find(kAlice, id, "region"), StatusIs(absl::StatusCode::kNotFound, _));
  EXPECT_EQ(table_.statistics().bytes, 0);
  const uint64_t mine = MustRegister(kAlice, SharedMemory::Memfd(4096));
  table_.CloseSession(first);  // late news of the old one
  EXPECT_THAT(table_.Find(kAlice, mine, "region"), IsOk());
}

TEST_F(RegionTableTest, QuotasCountRegionsAndWholeFiles) {
  table_.OpenSession(kAlice, kHere);
  table_.OpenSession(kBob, kHere);
  const SharedMemory large = SharedMemory::Posix(4 * 4096);
  EXPECT_THAT(table_.RegisterPosix(kAlice, large.name(), 0, 1),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("--session_memory_bytes")));
  const uint64_t id = MustRegister(kAlice, SharedMemory::Memfd(3 * 4096));
  EXPECT_THAT(Register(kAlice, SharedMemory::Memfd(4096)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("--session_memory_bytes")));
  EXPECT_THAT(Register(kBob, SharedMemory::Memfd(3 * 4096)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("--shared_memory_bytes")));
  MustRegister(kBob, SharedMemory::Memfd(2 * 4096));
  EXPECT_EQ(table_.statistics().bytes, 5 * 4096);
  ASSERT_THAT(table_.Unregister(kAlice, id), IsOk());
  MustRegister(kAlice, SharedMemory::Memfd(4096));
  MustRegister(kAlice, SharedMemory::Memfd(4096));
  EXPECT_THAT(
      Register(kAlice, SharedMemory::Memfd(4096)),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("number 3, want at most 2")));
  EXPECT_EQ(table_.statistics().bytes, 4 * 4096) << "what was refused costs nothing";
  EXPECT_EQ(table_.statistics().rejected, 4);
}

}  // namespace
}  // namespace rope::server
