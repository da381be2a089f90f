#include "server/clients/connections.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/support/shared_memory.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_clients.h"
#include "tests/unit/server/test_connection.h"

namespace rope::server {
namespace {

using ::rope::testing::TestConnection;

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

TEST(ConnectionsTest, ProxiesAreOwnersByName) {
  testing::TestClients clients({.connections = 4}, {}, {"uid:7", "ip:192.0.2.7"});
  Connections& connections = clients.connections;
  ASSERT_OK(proxy, Enter(connections, 5, "uid:7"));
  ASSERT_OK(other, Enter(connections, 6, "uid:77"));
  EXPECT_TRUE((*proxy)->is_proxy());
  EXPECT_FALSE((*other)->is_proxy());
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

}  // namespace
}  // namespace rope::server
