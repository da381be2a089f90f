#include "server/ipc/listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/ipc/hello.h"
#include "proto/mutex.h"
#include "server/ipc/ring.h"
#include "server/request/request.h"
#include "tests/support/raw_ring.h"
#include "tests/support/shared_memory.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_clients.h"
#include "tests/support/unix_socket.h"

namespace rope::server {
namespace {

TEST(ListenSocketTest, PortIsFilledIn) {
  ASSERT_OK(listening, ListenAt("127.0.0.1:0"));
  EXPECT_THAT(listening->address, StartsWith("127.0.0.1:"));
  EXPECT_NE(listening->address, "127.0.0.1:0");
  EXPECT_THAT(listening->sockets, SizeIs(1));
  EXPECT_EQ(listening->path, "");
}

TEST(ListenSocketTest, HostThatCannotBeResolvedIsUnavailable) {
  EXPECT_THAT(ListenAt("no.such.host.invalid:0"), IsUnavailable("--listen: got no.such"));
}

TEST(ListenSocketTest, FileThatIsNoSocketIsRefusedAndStays) {
  const std::string folder = ::rope::testing::TemporaryFolder();
  const std::string file = folder + "/file";
  const std::string link = folder + "/link";
  std::ofstream(file) << "x";
  ASSERT_EQ(symlink(file.c_str(), link.c_str()), 0);
  for (const std::string& path : {file, link, folder}) {
    EXPECT_THAT(ListenAt("unix:" + path), IsUnavailable("no socket"));
    EXPECT_FALSE(RemoveSocketFile(path));
    EXPECT_EQ(access(path.c_str(), F_OK), 0) << path;
  }
  EXPECT_TRUE(RemoveSocketFile(folder + "/nothing"));
  std::filesystem::remove_all(folder);
}

TEST(ListenSocketTest, AThousandClientsMayWait) {
  const std::string folder = ::rope::testing::TemporaryFolder();
  ASSERT_OK(listening, ListenAt("unix:" + folder + "/s"));
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
    ASSERT_OK(listening, ListenAt(address));
    EXPECT_TRUE(Accepted(*listening, "127.0.0.1").ok()) << address;
    EXPECT_TRUE(Accepted(*listening, "::1").ok()) << address;
  }
}

TEST(ListenSocketTest, AcceptedConnectionsSendAtOnceAndGiveUpADeadPeer) {
  ASSERT_OK(listening, ListenAt("127.0.0.1:0"));
  const proto::FileDescriptor server = Accepted(*listening, "127.0.0.1");
  struct Option {
    int level;
    int name;
    int want;
  };
  for (const Option& option : {Option{IPPROTO_TCP, TCP_NODELAY, 1},
                               {IPPROTO_TCP, TCP_USER_TIMEOUT, 20'000},
                               {SOL_SOCKET, SO_KEEPALIVE, 1},
                               {IPPROTO_TCP, TCP_KEEPIDLE, 60},
                               {IPPROTO_TCP, TCP_KEEPINTVL, 10}}) {
    int value = 0;
    socklen_t length = sizeof(value);
    ASSERT_EQ(getsockopt(server.get(), option.level, option.name, &value, &length), 0);
    EXPECT_EQ(value, option.want) << option.name;
  }
}

TEST(ListenSocketTest, PathThatFitsNoAddressIsInvalid) {
  EXPECT_THAT(ListenAt("unix:/" + std::string(107, 'a')), IsInvalid("a path of 108 bytes"));
}

using ::rope::testing::ConnectUnix;
using ::rope::testing::RawRing;
using ::rope::testing::SharedMemory;
using ::rope::testing::TestClients;

const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

void Say(const proto::FileDescriptor& client, const std::string& words) {
  EXPECT_EQ(send(client.get(), words.data(), words.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(words.size()));
}

// The same with descriptors.
void SayWith(const proto::FileDescriptor& client, std::string_view words,
             const std::vector<int>& passed) {
  std::string part_bytes(words);
  iovec part = {part_bytes.data(), part_bytes.size()};
  const size_t passed_bytes = passed.size() * sizeof(int);
  std::vector<cmsghdr> control(CMSG_SPACE(passed_bytes) / sizeof(cmsghdr) + 1);
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(passed_bytes);
  cmsghdr& rights = *CMSG_FIRSTHDR(&message);
  rights.cmsg_level = SOL_SOCKET;
  rights.cmsg_type = SCM_RIGHTS;
  rights.cmsg_len = CMSG_LEN(passed_bytes);
  std::memcpy(CMSG_DATA(&rights), passed.data(), passed_bytes);
  EXPECT_EQ(sendmsg(client.get(), &message, MSG_NOSIGNAL), static_cast<ssize_t>(words.size()));
}

// Blocks until the other end is closed.
bool WasClosed(const proto::FileDescriptor& client) {
  char byte = 0;
  return recv(client.get(), &byte, 1, 0) == 0;
}

class ListenerTest : public ::testing::Test {
 protected:
  ~ListenerTest() override {
    listener_.reset();
    rmdir(folder_.c_str());
  }

  void Listen(Listener::Options options = {}, TestClients* clients = nullptr) {
    options.hand_on = [this](int fd) {
      proto::MutexLock lock(&mutex_);
      handed_on_.emplace_back(fd);
      handed_over_.Signal();
    };
    auto listener =
        Listener::Create("unix:" + path_, (clients == nullptr ? clients_ : *clients).connections,
                         std::move(options));
    ASSERT_THAT(listener, IsOk());
    listener_ = *std::move(listener);
  }

  // The next connection that was handed to gRPC. The test owns it.
  proto::FileDescriptor NextHandedOn() {
    proto::MutexLock lock(&mutex_);
    while (handed_on_.empty()) handed_over_.Wait(&mutex_);
    proto::FileDescriptor first = std::move(handed_on_.front());
    handed_on_.erase(handed_on_.begin());
    return first;
  }
  size_t HandedOn() {
    proto::MutexLock lock(&mutex_);
    return handed_on_.size();
  }

  // Returns when the listener has handled all earlier events.
  void AwaitAttention() {
    const proto::FileDescriptor client = ConnectUnix(path_);
    Say(client, kPreface);
    NextHandedOn();
  }
  void AwaitRegions(int64_t regions) {
    while (clients_.totals.regions != regions) AwaitAttention();
  }

  const std::string folder_ = ::rope::testing::TemporaryFolder();
  const std::string path_ = folder_ + "/s";
  TestClients clients_{{.connections = 4096, .region_bytes = limits::kGiB}};
  proto::Mutex mutex_;
  proto::CondVar handed_over_;
  std::vector<proto::FileDescriptor> handed_on_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Listener> listener_;
};

TEST_F(ListenerTest, OrdinaryClientIsHandedOnWithItsPreface) {
  Listen();
  const proto::FileDescriptor client = ConnectUnix(path_);
  Say(client, kPreface.substr(0, 10));
  AwaitAttention();
  EXPECT_EQ(HandedOn(), 0u);
  Say(client, kPreface.substr(10));
  const proto::FileDescriptor server = NextHandedOn();
  char words[32] = {};
  EXPECT_EQ(recv(server.get(), words, sizeof(words), 0), 24) << "nothing was taken from it";
  EXPECT_EQ(std::string(words), kPreface);
}

TEST_F(ListenerTest, OwnerOfAConnectionIsKnownWhenItIsHandedOn) {
  Listen();
  const proto::FileDescriptor client = ConnectUnix(path_);
  Say(client, kPreface);
  const proto::FileDescriptor server = NextHandedOn();
  EXPECT_EQ(clients_.connections.Of(absl::StrCat("fd:", server.get()))->owner(),
            absl::StrCat("uid:", geteuid()));
  EXPECT_EQ(clients_.connections.Of("fd:1000000")->owner(), "unknown");
}

// Lowers RLIMIT_NOFILE, so that no file descriptor can be opened until it is destroyed.
class NoDescriptorsLeft {
 public:
  NoDescriptorsLeft() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const proto::FileDescriptor lowest(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(lowest.get());
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  ~NoDescriptorsLeft() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }

 private:
  rlimit before_ = {};
};

TEST_F(ListenerTest, ConnectionThatCannotBeWatchedIsRefused) {
  Listen();
  const SharedMemory memory = SharedMemory::Memfd(4096);
  const proto::FileDescriptor client = ConnectUnix(path_);
  const proto::HelloBytes hello = proto::Encode(proto::ClientHello{4096});
  const std::string_view words(reinterpret_cast<const char*>(hello.data()), hello.size());
  SayWith(client, words.substr(0, 1), {memory.fd()});
  for (int unread = 1; unread != 0;) ASSERT_EQ(ioctl(client.get(), SIOCOUTQ, &unread), 0);
  proto::HelloBytes bytes{};
  {
    const NoDescriptorsLeft none;
    Say(client, std::string(words.substr(1)));
    ASSERT_EQ(recv(client.get(), bytes.data(), bytes.size(), MSG_WAITALL), 32);
  }
  ASSERT_OK(answer, proto::DecodeServerHello(bytes));
  EXPECT_EQ(answer->code, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(answer->session, 0u);
  EXPECT_EQ(answer->region_id, 0u);
  EXPECT_EQ(clients_.totals.regions, 0);
  EXPECT_TRUE(WasClosed(client));
  EXPECT_EQ(HandedOn(), 0u);
}

TEST_F(ListenerTest, ClientOfAProxyBringsNoMemory) {
  TestClients proxies({.connections = 8}, {.enabled = true}, {absl::StrCat("uid:", geteuid())});
  Listen({}, &proxies);
  const SharedMemory memory = SharedMemory::Memfd(8192);
  const proto::FileDescriptor client = ConnectUnix(path_);
  ASSERT_OK(answer, proto::ExchangeHello(client.get(), {8192}, {memory.fd()}));
  EXPECT_EQ(answer->hello.code, absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(clients_.totals.regions, 0);
  listener_.reset();
}

TEST_F(ListenerTest, ServerThatShutsTheSocketEndsTheSessionToo) {
  Listen();
  const SharedMemory memory = SharedMemory::Memfd(4096);
  const proto::FileDescriptor client = ConnectUnix(path_);
  ASSERT_THAT(proto::ExchangeHello(client.get(), {4096}, {memory.fd()}), IsOk());
  {
    const proto::FileDescriptor server = NextHandedOn();
    EXPECT_EQ(clients_.totals.regions, 1);
    shutdown(server.get(), SHUT_RDWR);  // as gRPC does before it closes
  }
  AwaitRegions(0);
  EXPECT_TRUE(WasClosed(client));
}

TEST_F(ListenerTest, PendingAndHalfSpokenConnectionsAreClosedInTime) {
  Listen({.handshake_timeout = absl::Milliseconds(1)});
  const proto::FileDescriptor silent = ConnectUnix(path_);
  const proto::FileDescriptor half = ConnectUnix(path_);
  send(half.get(), "RoPE", 4, MSG_NOSIGNAL);  // which may come too late
  char byte = 0;
  EXPECT_LE(recv(silent.get(), &byte, 1, 0), 0);
  EXPECT_LE(recv(half.get(), &byte, 1, 0), 0);
  EXPECT_EQ(HandedOn(), 0u);
}

TEST_F(ListenerTest, PendingConnectionsHoldUpNobodyAndTheOldestGoes) {
  Listen({.pending_connections_max = 200});
  std::vector<proto::FileDescriptor> silent(200);
  for (proto::FileDescriptor& connection : silent) connection = ConnectUnix(path_);
  for (size_t i = 100; i < 200; ++i) Say(silent[i], "RoPEmem1");
  AwaitAttention();
  EXPECT_TRUE(WasClosed(silent[0])) << "there was no room for the next connection";
  Say(silent[1], kPreface);  // better late than never
  NextHandedOn();
}

TEST_F(ListenerTest, ConnectionBeyondTheBoundIsClosedUntilAPlaceIsFree) {
  TestClients two({.connections = 4});
  const auto count = [&two] { return two.accounts.held(Resource::kConnections); };
  Listen({}, &two);
  std::vector<proto::FileDescriptor> clients;
  for (int i = 0; i < 2; ++i) {
    clients.push_back(ConnectUnix(path_));
    Say(clients.back(), kPreface);
    NextHandedOn();
  }
  const proto::FileDescriptor refused = ConnectUnix(path_);
  Say(refused, kPreface);
  char byte = 0;
  EXPECT_LE(recv(refused.get(), &byte, 1, 0), 0);
  const proto::FileDescriptor with_hello = ConnectUnix(path_);
  const proto::HelloBytes hello = proto::Encode(proto::ClientHello{4096, 0});
  Say(with_hello, std::string(hello.data(), hello.size()));
  proto::HelloBytes bytes{};
  ASSERT_EQ(recv(with_hello.get(), bytes.data(), bytes.size(), MSG_WAITALL), 32);
  ASSERT_OK(answer, proto::DecodeServerHello(bytes));
  EXPECT_EQ(answer->code, absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(WasClosed(with_hello));
  EXPECT_EQ(count(), 2);
  clients.clear();
  while (count() > 0) std::this_thread::yield();
  clients.push_back(ConnectUnix(path_));
  Say(clients.back(), kPreface);
  NextHandedOn();
  listener_.reset();  // before the places end
}

TEST_F(ListenerTest, TcpConnectionsHaveNoHello) {
  auto listener = Listener::Create("127.0.0.1:0", clients_.connections, {.hand_on = [this](int fd) {
                                     proto::MutexLock lock(&mutex_);
                                     handed_on_.emplace_back(fd);
                                     handed_over_.Signal();
                                   }});
  ASSERT_THAT(listener, IsOk());
  const std::string address = (*listener)->address();
  sockaddr_in to{};
  int port = 0;
  ASSERT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port = htons(static_cast<in_port_t>(port));
  proto::FileDescriptor client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(connect(client.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  Say(client, "R");  // no hello on this socket: the HTTP/2 server reports the error
  const proto::FileDescriptor server = NextHandedOn();
  EXPECT_EQ(clients_.connections.Of(absl::StrCat("fd:", server.get()))->owner(), "ip:loopback");
}

// Sends a hello with a memfd and a ring; returns the answer.
absl::StatusOr<proto::HelloAnswer> SayHello(const proto::FileDescriptor& client,
                                            const SharedMemory& memory, const SharedMemory& ring) {
  return proto::ExchangeHello(client.get(), {memory.bytes(), ring.bytes()},
                              {memory.fd(), ring.fd()});
}

class RingListenerTest : public ListenerTest {
 protected:
  RingListenerTest() {
    auto rings = RingLoop::Create(
        absl::ZeroDuration(), [](RingCall& call) { call.Answer(absl::StatusCode::kOk, "served"); },
        [] { return false; });
    EXPECT_THAT(rings, IsOk());
    rings_ = *std::move(rings);
  }
  ~RingListenerTest() override { listener_.reset(); }

  // Sends a hello with descriptors, of which the server must keep none.
  void ExpectRefused(const proto::ClientHello& hello, size_t descriptors) {
    int ends[2] = {-1, -1};
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const proto::FileDescriptor reader(ends[0]);
    const proto::FileDescriptor client = ConnectUnix(path_);
    const auto answer =
        proto::ExchangeHello(client.get(), hello, std::vector<int>(descriptors, ends[1]));
    close(ends[1]);
    ASSERT_THAT(answer, IsOk());
    EXPECT_EQ(answer->hello.code, absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(answer->hello.region_id, 0u);
    EXPECT_FALSE(answer->doorbell.ok());
    char byte = 0;
    EXPECT_EQ(read(reader.get(), &byte, 1), 0) << "the server holds a descriptor that it refused";
    NextHandedOn();  // it goes on as a plain connection
    EXPECT_EQ(rings_->count(), 0);
  }

  const SharedMemory memory_ = SharedMemory::Memfd(8192);
  std::unique_ptr<RingLoop> rings_;
};

TEST_F(RingListenerTest, RingThatIsRefusedLeavesTheRegion) {
  Listen({.rings = rings_.get()});
  const SharedMemory other_size = SharedMemory::Memfd(sizeof(proto::Ring) / 2);
  const SharedMemory unsealed = SharedMemory::Memfd(sizeof(proto::Ring), 0);
  for (const SharedMemory* const ring : {&other_size, &unsealed}) {
    const proto::FileDescriptor client = ConnectUnix(path_);
    ASSERT_OK(answer, SayHello(client, memory_, *ring));
    EXPECT_EQ(answer->hello.code, absl::StatusCode::kOk);
    EXPECT_NE(answer->hello.region_id, 0u);
    EXPECT_FALSE(answer->doorbell.ok());
    NextHandedOn();
  }
  EXPECT_EQ(rings_->count(), 0);
}

TEST_F(RingListenerTest, RegionThatIsRefusedLeavesNoRing) {
  Listen({.rings = rings_.get()});
  const SharedMemory unsealed = SharedMemory::Memfd(4096, 0);
  const RawRing ring;
  const proto::FileDescriptor client = ConnectUnix(path_);
  ASSERT_OK(answer, SayHello(client, unsealed, ring.memory()));
  EXPECT_EQ(answer->hello.code, absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(answer->doorbell.ok());
  EXPECT_EQ(rings_->count(), 0);
}

TEST_F(RingListenerTest, DescriptorsThatAreNotThoseOfTheHelloAreRefused) {
  Listen({.rings = rings_.get()});
  ExpectRefused({.bytes = 4096, .ring_bytes = sizeof(proto::Ring)}, 0);
  ExpectRefused({.bytes = 4096, .ring_bytes = sizeof(proto::Ring)}, 1);
  ExpectRefused({.bytes = 4096, .ring_bytes = 0}, 2);
}

}  // namespace
}  // namespace rope::server
