#include "server/ipc/listen_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"

namespace rope::server {
namespace {

using ::rope::testing::IsOk;
using ::rope::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

TEST(ListenSocketTest, PortIsFilledIn) {
  const auto listening = ListenAt("127.0.0.1:0");
  ASSERT_THAT(listening, IsOk());
  EXPECT_THAT(listening->address, StartsWith("127.0.0.1:"));
  EXPECT_NE(listening->address, "127.0.0.1:0");
  EXPECT_THAT(listening->sockets, SizeIs(1));
  EXPECT_EQ(listening->path, "");
}

TEST(ListenSocketTest, PortThatIsTakenIsUnavailable) {
  const auto first = ListenAt("127.0.0.1:0");
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT(ListenAt(first->address), StatusIs(absl::StatusCode::kUnavailable,
                                                 HasSubstr("--listen: got " + first->address)));
}

TEST(ListenSocketTest, HostThatCannotBeResolvedIsUnavailable) {
  EXPECT_THAT(ListenAt("no.such.host.invalid:0"),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("--listen: got no.such")));
}

TEST(ListenSocketTest, PathIsTakenWhileSomebodyListensThere) {
  const std::string folder = ::rope::testing::TemporaryFolder();
  const std::string address = "unix:" + folder + "/s";
  {
    const auto first = ListenAt(address);
    ASSERT_THAT(first, IsOk());
    EXPECT_EQ(first->path, folder + "/s");
    EXPECT_THAT(ListenAt(address), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("connect")));
  }
  EXPECT_THAT(ListenAt(address), IsOk()) << "the file is left over, and no server listens on it";
  unlink((folder + "/s").c_str());
  rmdir(folder.c_str());
}

TEST(ListenSocketTest, SocketHasTheModeThatIsAsked) {
  const std::string folder = ::rope::testing::TemporaryFolder();
  for (const mode_t mode : {0600U, 0666U}) {
    const auto listening = ListenAt("unix:" + folder + "/s", mode);
    ASSERT_THAT(listening, IsOk());
    struct stat about {};
    ASSERT_EQ(stat(listening->path.c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 0777, mode);
  }
  unlink((folder + "/s").c_str());
  rmdir(folder.c_str());
}

TEST(ListenSocketTest, PathThatFitsNoAddressIsInvalid) {
  EXPECT_THAT(ListenAt("unix:/" + std::string(107, 'a')),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a path of 108 bytes")));
}

}  // namespace
}  // namespace rope::server
