#include "server/memory/region.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>

#include "tests/support/shared_memory.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::IsOk;
using ::rope::testing::SharedMemory;
using ::rope::testing::StatusIs;
using ::testing::_;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();

absl::StatusOr<std::unique_ptr<Region>> Open(const std::string& name, uint64_t offset,
                                             uint64_t bytes, uid_t owner = geteuid()) {
  return Region::OpenPosix({name, "/rope_", owner}, offset, bytes);
}

TEST(RegionTest, SealedMemfdIsMappedAndSharesItsBytes) {
  const SharedMemory memory = SharedMemory::Memfd(8192);
  auto region = Region::MapMemfd(memory.Dup(), 8192);
  ASSERT_THAT(region, IsOk());
  memory.data()[8191] = 'x';
  EXPECT_EQ((*region)->mapped()[8191], 'x');
  (*region)->mapped()[0] = 'y';
  EXPECT_EQ(memory.data()[0], 'y');
  EXPECT_EQ((*region)->bytes(), 8192u);
}

TEST(RegionTest, MemfdThatCouldShrinkIsRefused) {
  for (const int seals : {0, F_SEAL_GROW, F_SEAL_SEAL}) {
    const SharedMemory memory = SharedMemory::Memfd(4096, seals);
    EXPECT_THAT(Region::MapMemfd(memory.Dup(), 4096),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("F_SEAL_SHRINK")));
  }
  const SharedMemory both = SharedMemory::Memfd(4096, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  EXPECT_THAT(Region::MapMemfd(both.Dup(), 4096), IsOk());
}

TEST(RegionTest, MemfdThatCannotBeWrittenIsRefused) {
  proto::FileDescriptor file(memfd_create("rope_test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(file.get(), 4096), 0);
  ASSERT_EQ(fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_WRITE), 0);
  EXPECT_THAT(Region::MapMemfd(std::move(file), 4096),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("read and write")));
}

TEST(RegionTest, SizeMustBeThatOfTheMemfd) {
  const SharedMemory memory = SharedMemory::Memfd(4096);
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{4095}, uint64_t{4097}, kMost}) {
    EXPECT_THAT(Region::MapMemfd(memory.Dup(), bytes),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("for one of 4096")));
  }
}

TEST(RegionTest, OtherDescriptorsAreNoMemfd) {
  const SharedMemory posix = SharedMemory::Posix(4096);  // in memory, but can never be sealed
  EXPECT_THAT(Region::MapMemfd(posix.Dup(), 4096),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("can shrink")));
  for (const char* path : {"/dev/null", "/dev/zero", "/proc/self/exe", "/"}) {
    proto::FileDescriptor file(open(path, O_RDONLY | O_CLOEXEC));
    EXPECT_THAT(Region::MapMemfd(std::move(file), 4096),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("kind of file")))
        << path;
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
  EXPECT_THAT(Region::MapMemfd(std::move(file), bytes),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("kind of file")));
}

TEST(RegionTest, PosixObjectIsReadAndWrittenFromItsOffset) {
  const SharedMemory memory = SharedMemory::Posix(10000);
  std::memcpy(memory.data() + 1003, "rotary", 6);
  auto region = Open(memory.name(), 1000, 9000);
  ASSERT_THAT(region, IsOk());
  EXPECT_EQ((*region)->mapped(), nullptr);
  EXPECT_EQ((*region)->bytes(), 9000u);
  EXPECT_EQ((*region)->file_bytes(), 10000u);
  std::string text(6, ' ');
  ASSERT_THAT((*region)->Read(3, absl::MakeSpan(text)), IsOk());
  EXPECT_EQ(text, "rotary");
  ASSERT_THAT((*region)->Write(8997, std::string("end")), IsOk());
  EXPECT_EQ(std::string(memory.data() + 9997, 3), "end");
}

TEST(RegionTest, PosixObjectThatShrankIsAStatus) {
  const SharedMemory memory = SharedMemory::Posix(1 << 20);
  auto region = Open(memory.name(), 0, 1 << 20);
  ASSERT_THAT(region, IsOk());
  memory.Truncate(4096);
  std::string bytes(8192, 'x');
  EXPECT_THAT((*region)->Read(0, absl::MakeSpan(bytes)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("was truncated")));
  EXPECT_THAT((*region)->Write(0, bytes),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("was truncated")));
  struct stat about {};
  ASSERT_EQ(fstat(memory.fd(), &about), 0);
  EXPECT_EQ(about.st_size, 4096) << "the server made a client's object longer";
}

TEST(RegionTest, NamesOutsideThePrefixAreRefused) {
  for (const std::string name : {"", "/", "rope_a", "/other_a", "/rope_../x", "/rope_a/b",
                                 "//rope_a", "/rope_ a", "/rope_%", "/../rope_a", "/rope_\xff"}) {
    EXPECT_THAT(Open(name, 0, 16), StatusIs(absl::StatusCode::kInvalidArgument,
                                            AllOf(HasSubstr("shm_name: got"), HasSubstr("want"))))
        << name;
  }
  EXPECT_THAT(Open(std::string("/rope_a\0b", 9), 0, 16),
              StatusIs(absl::StatusCode::kInvalidArgument, _));
  EXPECT_THAT(Open("/rope_" + std::string(194, 'a'), 0, 16),
              StatusIs(absl::StatusCode::kNotFound, _));
  EXPECT_THAT(Open("/rope_" + std::string(195, 'a'), 0, 16),
              StatusIs(absl::StatusCode::kInvalidArgument, _));
}

TEST(RegionTest, ErrorsKeepNamesAndPathsToThemselves) {
  EXPECT_THAT(
      Open("/rope_secret", 0, 16),
      StatusIs(absl::StatusCode::kNotFound, AllOf(Not(HasSubstr("secret")), Not(HasSubstr("/dev")),
                                                  Not(HasSubstr("No such file")))));
}

TEST(RegionTest, ObjectsOfOthersAndLinksAreRefused) {
  const SharedMemory memory = SharedMemory::Posix(4096);
  EXPECT_THAT(Open(memory.name(), 0, 16, geteuid() + 1),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("the caller owns")));
  const std::string link = memory.name() + "_link";
  ASSERT_EQ(symlink(("/dev/shm" + memory.name()).c_str(), ("/dev/shm" + link).c_str()), 0);
  EXPECT_THAT(Open(link, 0, 16), StatusIs(absl::StatusCode::kPermissionDenied, _));
  ASSERT_EQ(unlink(("/dev/shm" + link).c_str()), 0);
  ASSERT_EQ(::link(("/dev/shm" + memory.name()).c_str(), ("/dev/shm" + link).c_str()), 0);
  EXPECT_THAT(Open(link, 0, 16), StatusIs(absl::StatusCode::kPermissionDenied, _));
  ASSERT_EQ(unlink(("/dev/shm" + link).c_str()), 0);
  ASSERT_EQ(mkfifo(("/dev/shm" + link).c_str(), 0600), 0);
  EXPECT_THAT(Open(link, 0, 16), StatusIs(absl::StatusCode::kPermissionDenied, _));
  ASSERT_EQ(unlink(("/dev/shm" + link).c_str()), 0);
}

TEST(RegionTest, PartsOfAnObjectEndWithinIt) {
  const SharedMemory memory = SharedMemory::Posix(4096);
  EXPECT_THAT(Open(memory.name(), 4095, 1), IsOk());
  EXPECT_THAT(Open(memory.name(), 0, 0), StatusIs(absl::StatusCode::kInvalidArgument, _));
  const std::pair<uint64_t, uint64_t> past[] = {{4096, 1},  {0, 4097},  {kMost, 1},
                                                {kMost, 2}, {1, kMost}, {4000, kMost - 3999}};
  for (const auto& [offset, bytes] : past) {
    EXPECT_THAT(Open(memory.name(), offset, bytes),
                StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("at most 4096")))
        << offset << " " << bytes;
  }
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
                StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("tensors[0].array.region: got")));
  }
}

}  // namespace
}  // namespace rope::server
