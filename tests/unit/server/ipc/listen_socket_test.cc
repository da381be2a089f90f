#include "server/ipc/listen_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/unix_socket.h"

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

TEST(ListenSocketTest, FileThatIsNoSocketIsRefusedAndStays) {
  const std::string folder = ::rope::testing::TemporaryFolder();
  const std::string file = folder + "/file";
  const std::string link = folder + "/link";
  std::ofstream(file) << "x";
  ASSERT_EQ(symlink(file.c_str(), link.c_str()), 0);
  for (const std::string& path : {file, link, folder}) {
    EXPECT_THAT(ListenAt("unix:" + path),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no socket")));
    EXPECT_FALSE(RemoveSocketFile(path));
    EXPECT_EQ(access(path.c_str(), F_OK), 0) << path;
  }
  EXPECT_TRUE(RemoveSocketFile(folder + "/nothing"));
  std::filesystem::remove_all(folder);
}

TEST(ListenSocketTest, AThousandClientsMayWait) {
  const std::string folder = ::rope::testing::TemporaryFolder();
  const auto listening = ListenAt("unix:" + folder + "/s");
  ASSERT_THAT(listening, IsOk());
  const sockaddr_un to = ::rope::testing::UnixAddress(listening->path);
  std::vector<proto::FileDescriptor> clients(1000);
  for (proto::FileDescriptor& client : clients) {
    client = proto::FileDescriptor(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(client.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  }
  EXPECT_TRUE(RemoveSocketFile(listening->path));
  rmdir(folder.c_str());
}

// Connects to this address at the port of `listening`; returns the accepting end.
proto::FileDescriptor Accepted(const ListenSockets& listening, const std::string& host) {
  const std::string port = listening.address.substr(listening.address.rfind(':') + 1);
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* to = nullptr;
  EXPECT_EQ(getaddrinfo(host.c_str(), port.c_str(), &hints, &to), 0);
  const proto::FileDescriptor client(socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int connected = connect(client.get(), to->ai_addr, to->ai_addrlen);
  freeaddrinfo(to);
  if (connected != 0) return {};
  return proto::FileDescriptor(accept(listening.sockets.front().get(), nullptr, nullptr));
}

bool HasIpv6Loopback() {
  return ListenAt("[::1]:0").ok();
}

TEST(ListenSocketTest, WildcardsOfBothFamiliesServeBoth) {
  if (!HasIpv6Loopback()) GTEST_SKIP() << "this system has no IPv6";
  for (const char* const address : {"0.0.0.0:0", "[::]:0"}) {
    const auto listening = ListenAt(address);
    ASSERT_THAT(listening, IsOk());
    EXPECT_TRUE(Accepted(*listening, "127.0.0.1").ok()) << address;
    EXPECT_TRUE(Accepted(*listening, "::1").ok()) << address;
  }
}

TEST(ListenSocketTest, AcceptedConnectionsSendAtOnceAndGiveUpADeadPeer) {
  const auto listening = ListenAt("127.0.0.1:0");
  ASSERT_THAT(listening, IsOk());
  const proto::FileDescriptor server = Accepted(*listening, "127.0.0.1");
  const std::pair<int, int> wanted[] = {{TCP_NODELAY, 1}, {TCP_USER_TIMEOUT, 20'000}};
  for (const auto& [option, want] : wanted) {
    int value = 0;
    socklen_t length = sizeof(value);
    ASSERT_EQ(getsockopt(server.get(), IPPROTO_TCP, option, &value, &length), 0);
    EXPECT_EQ(value, want) << option;
  }
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
