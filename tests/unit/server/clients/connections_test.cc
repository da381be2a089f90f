// Who a client is, what it may do, and how many connections it has.
#include "server/clients/connections.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/sha.h>
#include <sys/socket.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/ipc/file_descriptor.h"
#include "server/clients/access.h"
#include "server/clients/connection_watch.h"
#include "server/clients/peers.h"
#include "server/error.h"
#include "server/limits.h"
#include "tests/support/shared_memory.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_clients.h"
#include "tests/unit/server/test_connection.h"

namespace rope::server {
namespace {

using ::rope::testing::FakeClock;
using ::rope::testing::TestClients;
using ::rope::testing::TestConnection;
using ::testing::HasSubstr;

// The owner that has this address, "192.0.2.7" or "fe80::1", in this zone of IPv6.
std::string OwnerAtText(const std::string& text, uint32_t scope = 0) {
  sockaddr_storage address{};
  auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
  if (inet_pton(AF_INET, text.c_str(), &reinterpret_cast<sockaddr_in&>(address).sin_addr) == 1) {
    address.ss_family = AF_INET;
  } else if (inet_pton(AF_INET6, text.c_str(), &v6.sin6_addr) == 1) {
    address.ss_family = AF_INET6;
    v6.sin6_scope_id = scope;
  }
  return OwnerAt(address);
}

TEST(OwnerAtTest, AddressesAreOwners) {
  EXPECT_EQ(OwnerAtText("192.0.2.7"), "ip:192.0.2.7");
  EXPECT_EQ(OwnerAtText("2001:db8:0::7"), "ip:2001:db8::7");
  EXPECT_EQ(OwnerAtText("fe80::1", 2), "ip:fe80::1%2");
  EXPECT_EQ(OwnerAtText("fe80::1", 3), "ip:fe80::1%3");
  EXPECT_EQ(OwnerAtText(""), "unknown") << "an address of another family";
}

TEST(OwnerAtTest, AddressesThatAClientMayChooseFromAreOneOwner) {
  EXPECT_EQ(OwnerAtText("127.0.0.1"), "ip:loopback");
  EXPECT_EQ(OwnerAtText("127.9.9.9"), "ip:loopback");
  EXPECT_EQ(OwnerAtText("::1"), "ip:loopback");
  EXPECT_EQ(OwnerAtText("::ffff:127.0.0.2"), "ip:loopback");
  EXPECT_EQ(OwnerAtText("::ffff:192.0.2.7"), "ip:192.0.2.7");
}

TEST(ForwardedOwnerTest, IsTheLastCertificateOrElseTheLastAddress) {
  struct Case {
    const char* certificates;
    const char* addresses;
    std::string want;
  };
  const Case cases[] = {
      {"", "192.0.2.7", "ip:192.0.2.7"},
      {"", "127.0.0.1, 198.51.100.1,192.0.2.7 ", "ip:192.0.2.7"},
      {"", "2001:db8:0::7", "ip:2001:db8::7"},
      {"", "127.0.0.9", "ip:loopback"},
      {"", "", "unknown"},
      {"", "192.0.2.7,", "unknown"},
      {"", "192.0.2.7:80", "unknown"},
      {"Hash=ab12;URI=spiffe://a/b", "192.0.2.7", "cert:spiffe://a/b"},
      {"By=x;hash=ab12", "192.0.2.7", "cert:ab12"},
      {"URI=spiffe://first, URI=spiffe://last;Hash=1", "", "cert:spiffe://last"},
      {R"(Subject="CN=a;URI=spiffe://root,\"O=\";Hash=1";Hash=ab12)", "", "cert:ab12"},
      {R"(URI=spiffe://root;By=",By=b;Hash=1;URI=spiffe://me)", "", "cert:spiffe://me"},
      {R"(URI=spiffe://root;By=",By=b;Subject="a\",";URI=spiffe://me)", "", "cert:spiffe://me"},
      {"Subject=a", "192.0.2.7", "ip:192.0.2.7"},
      {"URI=;Hash=", "192.0.2.7", "ip:192.0.2.7"},
  };
  for (const Case& each : cases) {
    EXPECT_EQ(ForwardedOwner(each.certificates, each.addresses), each.want)
        << each.certificates << " " << each.addresses;
  }
  EXPECT_EQ(ForwardedOwner("Hash=" + std::string(256, 'a'), ""), "cert:" + std::string(256, 'a'));
  EXPECT_EQ(ForwardedOwner("Hash=" + std::string(257, 'a'), "192.0.2.7"), "unknown");
}

TEST(PeerNameTest, GrpcWritesAddressesAsUris) {
  EXPECT_EQ(PlainPeerName("ipv4:192.0.2.7:80"), "ipv4:192.0.2.7:80");
  EXPECT_EQ(PlainPeerName("ipv6:%5B2001:db8::7%5D:80"), "ipv6:[2001:db8::7]:80");
  EXPECT_EQ(PlainPeerName("ipv6:%5Bfe80::7%25eth0%5D:80"), "ipv6:[fe80::7]:80");
  EXPECT_EQ(PlainPeerName(""), "");
}

TEST(OwnerOfTest, SocketThatIsNotConnectedIsNobodys) {
  const proto::FileDescriptor socket_of_none(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(OwnerOf(socket_of_none.get(), /*is_unix=*/false), "unknown");
}

std::string DigestOf(const std::string& token) {
  std::array<uint8_t, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const uint8_t*>(token.data()), token.size(), digest.data());
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

std::string FileOf(const std::string& identities) {
  return absl::StrCat("{\"identities\": [", identities, "]}");
}

std::string WithToken(const std::string& name, const std::string& token,
                      const std::string& rights) {
  return absl::StrCat("{\"name\": \"", name, "\", \"tokens_sha256\": [\"", DigestOf(token),
                      "\"], \"rights\": [", rights, "]}");
}

class AccessTest : public ::testing::Test {
 protected:
  void Write(const std::string& text) const { std::ofstream(path_) << text; }
  absl::StatusOr<std::unique_ptr<Access>> Load(const std::string& text) {
    Write(text);
    return Access::Load(path_, clients_.accounts);
  }
  // The name of the identity that is admitted, or the error.
  static std::string Who(Access& access, const Credentials& credentials,
                         Right right = Right::kRotate) {
    const auto identity = access.Admit(credentials, right);
    return identity.ok() ? (*identity)->name : std::string(identity.status().message());
  }

  const std::string path_ = testing::TemporaryFolder() + "/access.json";
  testing::TestClients clients_{{.requests = 9, .request_bytes = 9}};
};

TEST_F(AccessTest, CertificateCountsBeforeTokenAndTokenBeforeUser) {
  ASSERT_OK(access, Load(FileOf(absl::StrCat(WithToken("by_token", "secret", "\"rotate\""), R"(,
    {"name": "by_name", "certificates": ["spiffe://a/b", "host"], "rights": ["rotate"]},
    {"name": "by_user", "uids": [7, 8], "rights": ["rotate"]})"))));
  EXPECT_EQ(Who(**access, {.certificates = {"other", "host"}, .token = "secret"}), "by_name");
  EXPECT_EQ(Who(**access, {.certificates = {"other"}, .token = "secret", .owner = "uid:7"}),
            "by_token");
  EXPECT_EQ(Who(**access, {.owner = "uid:8"}), "by_user");
  EXPECT_THAT(Who(**access, {.certificates = {"other"}}), HasSubstr("a certificate that nobody"));
  EXPECT_THAT(Who(**access, {.token = "Secret", .owner = "uid:7"}),
              HasSubstr("a token that nobody"))
      << "a token that is not known does not pass as its user";
  for (const char* owner : {"", "uid:9", "ip:loopback", "unknown"}) {
    EXPECT_THAT(Who(**access, {.owner = owner}), HasSubstr("a connection without any")) << owner;
  }
}

TEST_F(AccessTest, FileThatIsWrongChangesNothing) {
  ASSERT_OK(access, Load(FileOf(WithToken("old", "a", "\"rotate\""))));
  Write("{");
  (*access)->file().Look();
  EXPECT_EQ(Who(**access, {.token = "a"}), "old");
  (*access)->file().Reload();
  EXPECT_EQ((*access)->file().failures(), 2);
  EXPECT_EQ(Who(**access, {.token = "a"}), "old");
  Write(FileOf(WithToken("new", "b", "\"rotate\"")));
  (*access)->file().Reload();
  EXPECT_EQ(Who(**access, {.token = "b"}), "new");
}

TEST_F(AccessTest, FileThatIsGoneForAWhileChangesNothing) {
  ASSERT_OK(access, Load(FileOf(WithToken("old", "a", "\"rotate\""))));
  std::filesystem::rename(path_, path_ + "x");
  (*access)->file().Look();
  EXPECT_EQ(Who(**access, {.token = "a"}), "old");
  Write(FileOf(WithToken("new", "b", "\"rotate\"")));
  (*access)->file().Look();
  EXPECT_EQ(Who(**access, {.token = "b"}), "new");
}

TEST_F(AccessTest, UseOutlivesAReload) {
  const std::string limited =
      R"({"name": "one", "uids": [1], "rights": ["rotate"], "max_requests": 1})";
  ASSERT_OK(access, Load(FileOf(limited)));
  ASSERT_OK(before, (*access)->Admit({.owner = "uid:1"}, Right::kRotate));
  EXPECT_THAT((*before)->account->Take(Resource::kRequests, 1), testing::IsOk());
  (*access)->file().Reload();
  ASSERT_OK(after, (*access)->Admit({.owner = "uid:1"}, Right::kRotate));
  EXPECT_THAT((*after)->account->Take(Resource::kRequests, 1),
              testing::IsExhausted("queue: got request 2 of id:one, want at most 1"));
  (*before)->account->Give(Resource::kRequests, 1);
}

TEST_F(AccessTest, FilesThatAreWrongAreRefusedByKey) {
  const std::string digest = DigestOf("t");
  const std::pair<std::string, std::string> cases[] = {
      {"[]", "access_file: got no JSON object"},
      {"{}", "access_file.identities: got nothing, want a list"},
      {R"({"identities": 3})", "access_file.identities: got 3, want a list"},
      {R"({"identities": [], "other": 1})",
       "access_file.other: got an unknown key, want one of identities"},
      {FileOf("3"), "access_file.identities[0]: got 3, want an object"},
      {FileOf(R"({"rights": []})"), "access_file.identities[0].name: got nothing"},
      {FileOf(R"({"name": ""})"), "access_file.identities[0].name: got \"\""},
      {FileOf(R"({"name": "a", "rights": ["read"], "uids": [1]})"),
       "access_file.identities[0].rights: got read, want rotate, describe or inspect"},
      {FileOf(R"({"name": "a", "right": ["rotate"], "uids": [1]})"),
       "access_file.identities[0].right: got an unknown key"},
      {FileOf(R"({"name": "a", "rights": ["rotate"]})"),
       "access_file.identities[0]: got nothing to know it by"},
      {FileOf(R"({"name": "a", "tokens_sha256": ["12"]})"),
       "access_file.identities[0].tokens_sha256: got 2 characters, want 64 hexadecimal digits"},
      {FileOf(R"({"name": "a", "tokens_sha256": [")" + digest.substr(1) + R"(g"]})"),
       "access_file.identities[0].tokens_sha256: got 64 characters, want 64 hexadecimal digits"},
      {FileOf(R"({"name": "a", "tokens_sha256": "12"})"),
       "access_file.identities[0].tokens_sha256: got \"12\", want a list of texts"},
      {FileOf(R"({"name": "a", "uids": [-1]})"),
       "access_file.identities[0].uids: got -1, want numbers of users"},
      {FileOf(R"({"name": "a", "uids": [1, 1]})"), "access_file.identities[0].uids: got 1"},
      {FileOf(R"({"name": "a", "uids": [1]}, {"name": "a", "uids": [2]})"),
       "access_file.identities[1].name: got a, want each name once"},
      {FileOf(R"({"name": "a", "uids": [1]}, {"name": "b", "uids": [1]})"),
       "access_file.identities[1].uids: got 1"},
      {FileOf(R"({"name": "a", "certificates": ["x"]}, {"name": "b", "certificates": ["x"]})"),
       "access_file.identities[1].certificates: got x, want each name once"},
      {FileOf(absl::StrCat(WithToken("a", "t", ""), ",", WithToken("b", "t", ""))),
       "access_file.identities[1].tokens_sha256: got one for the second time, want each once"},
      {FileOf(R"({"name": "a", "uids": [1], "rights": [], "rights": ["rotate"]})"),
       "access_file: got a key twice in one object"},
      {FileOf(R"({"name": "a", "uids": [1], "rights": [["rotate"]]})"),
       "access_file.identities[0].rights: got a list, want a text"},
      {FileOf(R"({"name": "a", "uids": [1], "max_bytes": "1MiB"})"),
       "access_file.identities[0].max_bytes: got \"1MiB\", want a number, 0 or more"},
  };
  for (const auto& [text, error] : cases) {
    EXPECT_THAT(Load(text), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(error))) << text;
  }
  EXPECT_THAT(Load(""),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("want a file with content")));
  EXPECT_THAT(Access::Load(path_ + "x", clients_.accounts),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("--access_file: got ")));
}

absl::StatusOr<Connections::Place> Enter(Connections& connections, int fd,
                                         const std::string& owner) {
  return connections.Enter(fd, owner, /*is_unix=*/true, proto::FileDescriptor());
}

TEST(ConnectionsTest, NameOfNoConnectionHasTheAccountOfAnUnknownOwner) {
  testing::TestClients clients;
  Connections& connections = clients.connections;
  for (const char* const peer :
       {"", "unix:", "unix:/run/s", "ipv4:192.0.2.7:1", "fd:", "fd:x", "fd:99999999999", "fd:7"}) {
    EXPECT_EQ(connections.Of(peer)->owner(), "unknown") << peer;
    EXPECT_FALSE(connections.Of(peer)->ShutDown());
  }
  EXPECT_THAT(connections.Open(), IsEmpty());
}

TEST(ConnectionsTest, DescriptorIsWhoeverHasItNow) {
  testing::TestClients clients;
  Connections& connections = clients.connections;
  ASSERT_OK(first, Enter(connections, 17, "uid:1000"));
  ASSERT_OK(second, Enter(connections, 18, "ip:192.0.2.7"));
  EXPECT_EQ(connections.Of("fd:17")->owner(), "uid:1000");
  EXPECT_EQ(connections.Of("fd:18")->owner(), "ip:192.0.2.7");
  ASSERT_OK(next, Enter(connections, 17, "uid:0"));
  EXPECT_EQ(connections.Of("fd:17")->owner(), "uid:0");
}

TEST(ConnectionsTest, ConnectionWithTlsIsNamedByItsAddress) {
  testing::TestClients clients;
  Connections& connections = clients.connections;
  const auto enter = [&](int fd, const std::string& name) {
    return connections.Enter(fd, "ip:loopback", /*is_unix=*/false, proto::FileDescriptor(), name);
  };
  auto v4 = enter(17, "ipv4:127.0.0.1:4000");
  ASSERT_THAT(v4, IsOk());
  ASSERT_OK(v6, enter(18, "ipv6:[::1]:4000"));
  EXPECT_EQ(connections.Of("ipv4:127.0.0.1:4000")->id(), 1);
  EXPECT_EQ(connections.Of("ipv6:%5B::1%5D:4000")->id(), 2);
  EXPECT_EQ(connections.Of("ipv4:127.0.0.1:4001")->owner(), "unknown");
  *v4 = Connections::Place();
  EXPECT_EQ(connections.Of("ipv4:127.0.0.1:4000")->id(), 1) << "its last calls may end later";
  ASSERT_OK(next, enter(17, "ipv4:127.0.0.1:4002"));
  EXPECT_EQ(connections.Of("ipv4:127.0.0.1:4000")->owner(), "unknown");
  EXPECT_EQ(connections.Of("ipv4:127.0.0.1:4002")->id(), 3);
}

TEST(ConnectionsTest, NameThatIsTakenAgainIsOfTheLaterConnection) {
  testing::TestClients clients;
  Connections& connections = clients.connections;
  const auto enter = [&](int fd, const std::string& name) {
    return connections.Enter(fd, "ip:loopback", /*is_unix=*/false, proto::FileDescriptor(), name);
  };
  auto first = enter(17, "ipv4:127.0.0.1:4000");
  ASSERT_THAT(first, IsOk());
  EXPECT_THAT(enter(18, "ipv4:127.0.0.1:4000"),
              IsExhausted("want one connection of an address and port"))
      << "both are open";
  *first = Connections::Place();
  ASSERT_OK(second, enter(18, "ipv4:127.0.0.1:4000"));
  EXPECT_EQ(connections.Of("ipv4:127.0.0.1:4000"), *second);
  ASSERT_OK(third, enter(17, "ipv4:127.0.0.1:4001"));
  EXPECT_EQ(connections.Of("ipv4:127.0.0.1:4000"), *second) << "17 had that name before";
}

TEST(ConnectionsTest, OneOwnerLeavesPlacesAndAPlaceIsFreeOnceItsConnectionEnds) {
  testing::TestClients clients({.connections = 3});
  Connections& connections = clients.connections;
  std::vector<Connections::Place> greedy;
  for (const int fd : {5, 6}) {
    auto place = Enter(connections, fd, "uid:1");
    ASSERT_THAT(place, IsOk());
    greedy.push_back(*std::move(place));
  }
  EXPECT_THAT(Enter(connections, 7, "uid:1"),
              IsExhausted("max_connections: got connection 3 of uid:1, want at most 2"));
  ASSERT_OK(other, Enter(connections, 8, "uid:2"));
  EXPECT_THAT(Enter(connections, 9, "uid:3"),
              IsExhausted("max_connections: got connection 4 of all clients, want at most 3"));
  EXPECT_EQ(clients.accounts.held(Resource::kConnections), 3);
  EXPECT_EQ(clients.accounts.refusals(Resource::kConnections).owner_share, 1);
  EXPECT_EQ(clients.accounts.refusals(Resource::kConnections).full, 1);
  greedy.clear();
  EXPECT_EQ(clients.accounts.held(Resource::kConnections), 1);
  EXPECT_THAT(Enter(connections, 9, "uid:1"), IsOk());
}

TEST(ConnectionsTest, NothingCountsOnceTheLastConnectionAndItsCallsHaveEnded) {
  testing::TestClients clients;
  {
    TestConnection connection(clients.connections, "uid:1");
    const auto account = connection.connection()->account();
    Permit permit;
    ASSERT_THAT(permit.Admit(*account, 100, "request"), IsOk());
    ASSERT_OK(watch, TakePlace(account, Resource::kWatches));
    ASSERT_OK(work, TakePlace(account, Resource::kLongCalls));
    const testing::SharedMemory memory = testing::SharedMemory::Memfd(4096);
    ASSERT_THAT(connection.connection()->regions().RegisterMemfd(memory.Dup(), 4096), IsOk());
    connection.Leave();
    EXPECT_EQ(clients.region_bytes(), 0);
    EXPECT_EQ(clients.accounts.held(Resource::kConnections), 0);
    EXPECT_EQ(clients.accounts.held(Resource::kRequests), 1);
  }
  for (size_t i = 0; i < kResourceCount; ++i) {
    EXPECT_EQ(clients.accounts.held(static_cast<Resource>(i)), 0) << i;
  }
}

class ConnectionTest : public ::testing::Test {
 protected:
  testing::TestClients clients_;
  Connections& connections_ = clients_.connections;
};

TEST_F(ConnectionTest, TrafficIsWhatTcpHasCountedAndUnixSocketsCountNone) {
  TestConnection tcp(connections_, "ip:loopback", TestConnection::Transport::kTcp);
  tcp.Send(1000);
  const auto traffic = tcp.connection()->traffic();
  ASSERT_TRUE(traffic.has_value());
  EXPECT_EQ(traffic->read_bytes, 1000);
  EXPECT_EQ(traffic->taken_bytes, 0);
  tcp.Leave();
  EXPECT_EQ(tcp.connection()->traffic(), std::nullopt);
  TestConnection unix_socket(connections_, "uid:1");
  unix_socket.Send(1000);
  EXPECT_EQ(unix_socket.connection()->traffic(), std::nullopt);
}

TEST_F(ConnectionTest, ShutDownEndsBothWaysUntilTheConnectionHasEnded) {
  for (const auto transport : {TestConnection::Transport::kUnix, TestConnection::Transport::kTcp}) {
    TestConnection connection(connections_, "uid:1", transport);
    EXPECT_FALSE(connection.IsClosed());
    EXPECT_TRUE(connection.connection()->ShutDown("last"));
    EXPECT_FALSE(connection.connection()->ShutDown("not sent")) << "it is closed";
    EXPECT_TRUE(connection.IsClosed());
    EXPECT_EQ(connection.received(), "last");
    connection.Leave();
    EXPECT_FALSE(connection.connection()->ShutDown());
  }
}


constexpr absl::Duration kStep = absl::Milliseconds(100);
constexpr absl::Duration kHandshake = absl::Seconds(10);
constexpr absl::Duration kIdle = absl::Minutes(1);

class ConnectionWatchTest : public ::testing::Test {
 protected:
  ConnectionWatchTest() { Look(); }

  void Look() {
    clock_.Advance(kStep);
    watch_.Look(clock_.Now());
  }
  // Looks each second of `time`.
  void PassIdly(absl::Duration time) {
    for (absl::Duration passed; passed < time; passed += absl::Seconds(1)) {
      clock_.Advance(absl::Seconds(1));
      watch_.Look(clock_.Now());
    }
  }
  int64_t Closed(CloseReason reason) const {
    return connections_.closed()[static_cast<size_t>(reason)].second;
  }

  TestClients clients_;
  FakeClock& clock_ = clients_.clock;
  Connections& connections_ = clients_.connections;
  uint64_t with_memory_ = 0;  // the id of a connection; 0: of none
  bool needs_memory_ = false;
  ConnectionWatch watch_{
      connections_,
      {.handshake_timeout = kHandshake,
       .idle_timeout = kIdle,
       .has_memory =
           [this](const Connection& connection) { return connection.id() == with_memory_; },
       .needs_memory = [this] { return needs_memory_; }}};
  TestConnection tcp_{connections_, "ip:loopback", TestConnection::Transport::kTcp};
  TestConnection other_{connections_, "ip:192.0.2.7", TestConnection::Transport::kTcp};
  TestConnection unix_{connections_, "uid:1"};
};

TEST_F(ConnectionWatchTest, LooksTenTimesASecondWhileThereAreCalls) {
  EXPECT_EQ(watch_.Look(clock_.Now()), absl::Seconds(1));
  unix_.connection()->BeginCall();
  EXPECT_EQ(watch_.Look(clock_.Now()), absl::Milliseconds(100));
  unix_.connection()->EndCall();
  EXPECT_EQ(watch_.Look(clock_.Now()), absl::Seconds(1));
}

TEST_F(ConnectionWatchTest, ClosesAConnectionThatCancelsMostOfItsCalls) {
  for (int64_t i = 0; i <= ConnectionWatch::kLostCallsMax; ++i) {
    unix_.connection()->BeginCall();
    unix_.connection()->LoseCall();
    for (int j = 0; j < 3; ++j) tcp_.connection()->BeginCall();
    tcp_.connection()->LoseCall();
  }
  Look();
  EXPECT_TRUE(unix_.IsClosed());
  EXPECT_FALSE(tcp_.IsClosed()) << "a proxy, whose clients cancel some of their calls";
  EXPECT_EQ(Closed(CloseReason::kLostCalls), 1);
}

TEST_F(ConnectionWatchTest, ConnectionsOfAnOwnerLoseCallsTogether) {
  TestConnection second(connections_, "uid:1");
  Look();
  for (int64_t i = 0; i <= ConnectionWatch::kLostCallsMax / 2; ++i) {
    for (const TestConnection* const connection : {&unix_, &second, &tcp_}) {
      connection->connection()->BeginCall();
      connection->connection()->LoseCall();
    }
  }
  Look();
  EXPECT_TRUE(unix_.IsClosed());
  EXPECT_TRUE(second.IsClosed());
  EXPECT_FALSE(tcp_.IsClosed());
}

TEST_F(ConnectionWatchTest, CountsOverASecond) {
  for (int second = 0; second < 3; ++second) {
    for (int64_t i = 0; i < ConnectionWatch::kLostCallsMax; ++i) {
      unix_.connection()->CountUnknownCancel();
    }
    for (absl::Duration step; step < absl::Seconds(1); step += kStep) Look();
  }
  EXPECT_FALSE(unix_.IsClosed());
  for (int64_t i = 0; i <= ConnectionWatch::kLostCallsMax; ++i) {
    unix_.connection()->CountUnknownCancel();
    for (int j = 0; j < 3; ++j) tcp_.connection()->CountMessage(9);
    tcp_.connection()->CountUnknownCancel();
  }
  Look();
  EXPECT_TRUE(unix_.IsClosed());
  EXPECT_FALSE(tcp_.IsClosed()) << "some of its cancels meet their answer";
  EXPECT_EQ(Closed(CloseReason::kLostCalls), 1);
}

TEST_F(ConnectionWatchTest, ClosesTheOwnerThatTakesTheFewestReplies) {
  tcp_.connection()->OweReply(300);
  other_.connection()->OweReply(200);
  unix_.connection()->OweReply(1000);
  Look();
  clock_.Advance(ConnectionWatch::kUntaken / 2);
  unix_.connection()->OweReply(limits::kMiB);
  unix_.connection()->PayReply(limits::kMiB, /*taken=*/true);
  other_.connection()->OweReply(limits::kMiB);
  other_.connection()->PayReply(limits::kMiB, /*taken=*/false);
  Look();
  clock_.Advance(ConnectionWatch::kUntaken / 2);
  Look();
  EXPECT_FALSE(tcp_.IsClosed()) << "the memory is not needed";
  needs_memory_ = true;
  Look();
  EXPECT_TRUE(tcp_.IsClosed());
  EXPECT_FALSE(other_.IsClosed()) << "another owner owes more";
  EXPECT_FALSE(unix_.IsClosed()) << "it has taken a reply meanwhile";
  EXPECT_EQ(Closed(CloseReason::kUntakenReplies), 1);
}

TEST_F(ConnectionWatchTest, ClosesAConnectionWithoutAFirstCall) {
  tcp_.connection()->BeginCall();
  with_memory_ = other_.connection()->id();
  PassIdly(kHandshake - absl::Seconds(1));
  EXPECT_FALSE(unix_.IsClosed());
  PassIdly(absl::Seconds(1));
  EXPECT_TRUE(unix_.IsClosed());
  EXPECT_FALSE(tcp_.IsClosed()) << "its call is under way";
  EXPECT_FALSE(other_.IsClosed()) << "it has shared memory";
  EXPECT_EQ(Closed(CloseReason::kNoCall), 1);
}

TEST_F(ConnectionWatchTest, TellsClientsWhyInAFrameOfHttp2) {
  const auto frame = [](const std::string& last_stream_and_code, const std::string& reason) {
    const std::string payload =
        last_stream_and_code + "rope_server closed the connection: " + reason;
    return std::string({0, 0, static_cast<char>(payload.size()), 7, 0, 0, 0, 0, 0}) + payload;
  };
  const std::string no_error = {0x7f, '\xff', '\xff', '\xff', 0, 0, 0, 0};
  const std::string enhance_your_calm = {0x7f, '\xff', '\xff', '\xff', 0, 0, 0, 11};
  other_.connection()->BeginCall();
  for (int64_t i = 0; i <= ConnectionWatch::kLostCallsMax; ++i) {
    tcp_.connection()->CountUnknownCancel();
    other_.connection()->CountUnknownCancel();
  }
  Look();
  EXPECT_TRUE(other_.IsClosed());
  EXPECT_EQ(other_.received(), "") << "gRPC may be writing to its call";
  EXPECT_TRUE(tcp_.IsClosed());
  EXPECT_EQ(tcp_.received(), frame(enhance_your_calm, "lost_calls"));
  PassIdly(kHandshake + absl::Seconds(1));
  EXPECT_TRUE(unix_.IsClosed());
  EXPECT_EQ(unix_.received(), frame(no_error, "no_call"));
}

TEST_F(ConnectionWatchTest, ClosesAConnectionThatIsIdle) {
  for (TestConnection* const connection : {&tcp_, &other_, &unix_}) {
    connection->connection()->BeginCall();
    connection->connection()->EndCall();
  }
  with_memory_ = other_.connection()->id();
  PassIdly(kIdle);
  unix_.connection()->BeginCall();
  unix_.connection()->EndCall();
  PassIdly(absl::Seconds(1));
  EXPECT_TRUE(tcp_.IsClosed());
  EXPECT_FALSE(unix_.IsClosed()) << "it has made a call";
  EXPECT_FALSE(other_.IsClosed()) << "it has shared memory";
  EXPECT_EQ(Closed(CloseReason::kIdle), 1);
}

}  // namespace
}  // namespace rope::server
