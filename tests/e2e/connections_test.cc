// Connections of a real server that bring no calls, and what their clients learn of the end.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "rope/client.h"
#include "tests/support/http2_peer.h"
#include "tests/support/matchers.h"
#include "tests/support/metrics_page.h"
#include "tests/support/process_memory.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"
#include "tests/support/unix_socket.h"

namespace rope::testing {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

// Waits until the metric has the value. Returns the value.
double AwaitValue(const TestServer& server, const std::string& metric, double wanted) {
  const auto end = steady_clock::now() + seconds(30);
  double value = -1;
  do {
    value = Scrape(MetricsPort(server)).Value(metric);
  } while (value != wanted && steady_clock::now() < end);
  return value;
}

// A connection that begins as every client of HTTP/2 does.
proto::FileDescriptor ConnectWithPreface(const TestServer& server) {
  proto::FileDescriptor connection =
      ConnectLoopback(std::stoi(server.address().substr(server.address().rfind(':') + 1)));
  send(connection.get(), kHttp2Preface.data(), kHttp2Preface.size(), MSG_NOSIGNAL);
  return connection;
}

std::string ClosedBecause(const std::string& reason) {
  return "rope_connections_closed_total{reason=\"" + reason + "\"}";
}

// What the server sends until it closes the connection.
std::string ReadAll(const proto::FileDescriptor& connection) {
  std::string all;
  std::string part(4096, 0);
  ssize_t got = 0;
  while ((got = recv(connection.get(), part.data(), part.size(), 0)) > 0) {
    all.append(part, 0, static_cast<size_t>(got));
  }
  return all;
}

TEST(IdleConnectionTest, IsClosedAndItsClientComesBackUnlessItHasSharedMemory) {
  const std::string target = "unix:" + TemporaryFolder() + "/s";
  TestServer server({"--listen=" + target, "--enable_shared_memory", "--idle_timeout=100ms",
                     "--metrics_listen=127.0.0.1:0", "--log_level=error"});
  client::ConnectOptions options;
  options.transports = {client::Transport::kRing};
  const client::Client ring = client::Client::Connect(target, options).value();
  options.transports = {client::Transport::kInline};
  const client::Client idle = client::Client::Connect(server.address(), options).value();
  for (const int closed : {1, 2}) {
    EXPECT_TRUE(idle.CallJson("GetServerInfo", "{}").ok())
        << "it tries again if it has not seen the end";
    EXPECT_EQ(AwaitValue(server, ClosedBecause("idle"), closed), closed);
  }
  EXPECT_EQ(Scrape(MetricsPort(server)).Value("rope_rings"), 1);
  EXPECT_TRUE(ring.CallJson("GetServerInfo", "{}").ok());
}

TEST(IdleConnectionTest, PrefaceWithoutACallIsClosedAfterTheHandshakeTimeout) {
  TestServer server({"--handshake_timeout=500ms", "--log_level=error"});
  const proto::FileDescriptor connection = ConnectWithPreface(server);
  EXPECT_THAT(ReadAll(connection), EndsWith("rope_server closed the connection: no_call"));
}

// Clients of a proxy, which says in a header who they are.
std::string OwnerOf(v1::RopeService::Stub& stub, const std::string& forwarded_for) {
  grpc::ClientContext context;
  context.AddMetadata("x-forwarded-for", forwarded_for);
  v1::ListConnectionsResponse response;
  EXPECT_TRUE(stub.ListConnections(&context, {}, &response).ok());
  return response.owner();
}

TEST(ForwardedTest, CallsOfATrustedProxyHaveTheOwnersThatItNames) {
  TestServer server({"--trusted_proxy=ip:loopback", "--log_level=error"});
  const auto stub = server.NewStub();
  EXPECT_EQ(OwnerOf(*stub, "192.0.2.7"), "ip:192.0.2.7");
  EXPECT_EQ(OwnerOf(*stub, "192.0.2.8, 192.0.2.7"), "ip:192.0.2.7");
}

TEST(ForwardedTest, AnybodyElseIsWhoTheKernelSays) {
  TestServer server({"--trusted_proxy=ip:192.0.2.1", "--log_level=error"});
  const auto stub = server.NewStub();
  EXPECT_EQ(OwnerOf(*stub, "192.0.2.7"), "ip:loopback");
}

TEST(ListConnectionsTest, RopectlShowsWhoCallsTheServer) {
  const std::string target = "unix:" + TemporaryFolder() + "/s";
  TestServer server({"--listen=" + target, "--log_level=error"});
  const auto stub = server.NewStub();
  EXPECT_TRUE(Serves(*stub));
  const std::string user = "uid:" + std::to_string(geteuid());
  const Outcome all = RunProgram({RopectlProgram(), "connections", "--target=" + target});
  EXPECT_THAT(all, Exits(0, ContainsRegex("[0-9] ip:loopback +tcp +1 +0 +0 +[0-9]+ +[0-9]+ +0\n")));
  EXPECT_THAT(all.output, ContainsRegex("[0-9] " + user + " +unix +[0-9]+ +1 +0 +[0-9]+ +- +0\n"));
  EXPECT_THAT(all.output, Not(HasSubstr("alone")));
  const Outcome own =
      RunProgram({RopectlProgram(), "connections", "--json", "--target=" + server.address()});
  EXPECT_THAT(own, Exits(0, HasSubstr("\"owner\": \"ip:loopback\"")));
  EXPECT_THAT(own.output, Not(HasSubstr(user)));
}

// rope_server with at most `files` open files, and more connections than it has files for.
TEST(ManyConnectionsTest, MetricsPageHasAPlace) {
  constexpr int kFiles = 256;
  constexpr int kConnections = 200;  // of each kind
  constexpr int kOwnersShare = kFiles / 4 / 2;
  const std::string program = TemporaryFolder() + "/few_files";
  std::ofstream(program) << "#!/bin/sh\nulimit -n " << kFiles << "\nexec " << ServerProgram()
                         << " \"$@\"\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  const std::string path = TemporaryFolder() + "/s";
  TestServer server({"--listen=unix:" + path, "--metrics_listen=127.0.0.1:0",
                     "--handshake_timeout=1m", "--log_level=error"},
                    Process::Errors::kOurs, nullptr, program);
  std::vector<proto::FileDescriptor> connections;
  for (int i = 0; i < kConnections; ++i) {
    connections.push_back(ConnectWithPreface(server));
    connections.push_back(ConnectTcp(server.address()));
    connections.push_back(ConnectUnix(path));
  }
  EXPECT_EQ(AwaitValue(server, "rope_budget_used{budget=\"connections\"}", kOwnersShare),
            kOwnersShare);
  EXPECT_LT(OpenDescriptors(server.process().pid()), kFiles);
  EXPECT_THAT(Get("/readyz", MetricsPort(server)), HasSubstr("200 OK"));
}

}  // namespace
}  // namespace rope::testing
