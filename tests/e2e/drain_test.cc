// The server's process and its connections: command line, SIGTERM, connections without calls.
#include <google/protobuf/stubs/logging.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "proto/version.h"
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

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using std::chrono::seconds;
using std::chrono::steady_clock;

// The server's response to its flags, and its exit.

TEST(CommandLineTest, EveryProgramHasHelpVersionAndOneStatusForWrongUsage) {
  for (const char* program : {"rope_server", "ropectl"}) {
    const std::string path = std::string(ROPE_BINARY_DIR) + "/bin/" + program;
    for (const char* flag : {"-h", "--help"}) {
      const Outcome help = RunProgram({path, flag});
      EXPECT_EQ(help.status, 0) << program;
      EXPECT_THAT(help.output, HasSubstr(program));
    }
    const Outcome version = RunProgram({path, "--version"});
    EXPECT_EQ(version.status, 0) << program;
    EXPECT_EQ(version.output, absl::StrCat(program, " ", proto::kVersion, "\n"));
    EXPECT_EQ(RunProgram({path, "--frobnicate"}).status, 2) << program;
  }
}

TEST(CommandLineTest, ClientsCannotFillTheLogWithProtobufsComplaints) {
  const google::protobuf::LogSilencer ours;
  Process server({ServerProgram(), "--listen=127.0.0.1:0"}, Process::Errors::kOutput);
  std::string line = server.ReadLine();
  while (!line.empty() && !absl::StartsWith(line, "listening on ")) line = server.ReadLine();
  const auto channel =
      grpc::CreateChannel(line.substr(line.rfind(' ') + 1), grpc::InsecureChannelCredentials());
  grpc::ClientContext context;
  v1::RotateRequest request;
  request.set_request_id("\xc3\x28");
  v1::RotateResponse response;
  const grpc::Status status =
      v1::RopeService::NewStub(channel)->Rotate(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  server.Signal(SIGTERM);
  const std::string log = server.ReadAll();
  EXPECT_THAT(log, HasSubstr("code=INVALID_ARGUMENT"));
  EXPECT_THAT(log, Not(HasSubstr("libprotobuf")));
  EXPECT_EQ(server.Wait(), 0);
}

// Hides the GPU, if there is one.
class WithoutGpu {
 public:
  WithoutGpu() { setenv("CUDA_VISIBLE_DEVICES", "-1", 1); }
  ~WithoutGpu() { unsetenv("CUDA_VISIBLE_DEVICES"); }
};

TEST(CommandLineTest, CudaWithoutAGpuIsAnErrorThatSaysWhy) {
  const WithoutGpu without_gpu;
  EXPECT_THAT(
      RunProgram({ServerProgram(), "--device=cuda", "--listen=127.0.0.1:0"}),
      Exits(1, AllOf(HasSubstr("rope_server: "), HasSubstr("--device: "), HasSubstr("cuda"))));
}

TEST(CommandLineTest, AddressThatIsTakenIsAnError) {
  TestServer server;
  EXPECT_THAT(RunProgram({ServerProgram(), "--listen=" + server.address()}),
              Exits(1, HasSubstr("--listen: got " + server.address())));
}

TEST(CommandLineTest, MetricsAddressOfIPv6ThatCannotBeIsAnErrorThatSaysWhatCan) {
  EXPECT_THAT(
      RunProgram({ServerProgram(), "--listen=127.0.0.1:0", "--metrics_listen=[2001:db8::1]:0"}),
      Exits(1, HasSubstr("--metrics_listen: got [2001:db8::1]:0, want an IPv4 address, or")));
}

TEST(CommandLineTest, ModelFileThatDoesNotTellItsPairingIsAnError) {
  const std::string path = TemporaryFolder() + "/config.json";
  std::ofstream(path) << R"({"head_dim": 4})";
  EXPECT_THAT(RunProgram({ServerProgram(), "--listen=127.0.0.1:0", "--model=mine=" + path}),
              Exits(1, AllOf(HasSubstr("model mine: rope.pairing: got nothing, want PAIRING_HALF"),
                             Not(HasSubstr("rope.error")))));
}

TEST(CommandLineTest, UnixSocketThatIsInUseIsAnErrorAndAStaleOneIsReplaced) {
  const std::string path = TemporaryFolder() + "/rope.sock";
  {
    TestServer first({"--listen=unix:" + path});
    EXPECT_THAT(RunProgram({ServerProgram(), "--listen=unix:" + path}),
                Exits(1, HasSubstr("--listen: got unix:" + path)));
    first.process().Signal(SIGKILL);  // does not remove its socket file
    first.process().Wait();
  }
  TestServer third({"--listen=unix:" + path});
  EXPECT_TRUE(Serves(*third.NewStub()));
}

TEST(CommandLineTest, SocketModeIsThatOfEveryUnixSocket) {
  const std::string path = TemporaryFolder() + "/rope.sock";
  TestServer server({"--listen=unix:" + path, "--socket_mode=606"});
  struct stat about {};
  ASSERT_EQ(stat(path.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777U, 0606U);
  EXPECT_TRUE(Serves(*server.NewStub()));
}

// SIGTERM: not serving, finish what runs, exit 0.

// 32 MiB: runs long enough for a signal to arrive in the middle.
v1::RotateRequest LargeRequest() {
  v1::RotateRequest request;
  request.mutable_rope()->set_model("llama-3.1-8b");
  request.mutable_positions()->set_start(0);
  v1::Tensor& tensor = *request.add_tensors();
  tensor.set_role(v1::ROLE_Q);
  tensor.set_layout("SHD");
  tensor.mutable_array()->set_dtype(v1::DTYPE_FP32);
  for (const int64_t length : {4096, 16, 128}) tensor.mutable_array()->add_shape(length);
  tensor.mutable_array()->set_raw(std::string(4096 * 16 * 128 * 4, '\0'));
  return request;
}

// The rotation of zeros gives zeros of either sign.
bool AllZero(const std::string& raw) {
  const auto* values = reinterpret_cast<const float*>(raw.data());
  return std::all_of(values, values + raw.size() / 4, [](float value) { return value == 0; });
}

TEST(DrainTest, SigtermOnAnIdleServerExitsZero) {
  for (const int signal : {SIGTERM, SIGINT}) {
    TestServer server;
    ASSERT_TRUE(Serves(*server.NewStub()));
    server.process().Signal(signal);
    EXPECT_EQ(server.process().Wait(), 0);
  }
}

TEST(DrainTest, WatchSeesNotServingThenTheStreamEnds) {
  TestServer server({"--drain_lead=1h"});
  const auto stub = Health::NewStub(server.NewChannel());
  grpc::ClientContext context;
  const auto watch = stub->Watch(&context, HealthCheckRequest());
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  server.process().Signal(SIGTERM);
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  // During the lead time the server still accepts calls; a second signal ends it.
  EXPECT_TRUE(Serves(*server.NewStub()));
  const auto drained_from = std::chrono::steady_clock::now();
  server.process().Signal(SIGTERM);
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  // The channel stays open and nothing polls it: the server must not wait for its GOAWAY
  // acknowledgement.
  EXPECT_EQ(server.process().Wait(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - drained_from, std::chrono::seconds(3));
}

TEST(DrainTest, ReadyzFollowsTheDrainFromItsFirstMoment) {
  TestServer server({"--drain_lead=1h", "--metrics_listen=127.0.0.1:0"});
  const int port = MetricsPort(server);
  EXPECT_THAT(Get("/readyz", port), StartsWith("HTTP/1.0 200 "));
  server.process().Signal(SIGTERM);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  std::string answer;
  do {
    answer = Get("/readyz", port);
  } while (!answer.starts_with("HTTP/1.0 503 ") && std::chrono::steady_clock::now() < deadline);
  EXPECT_THAT(answer, EndsWith("\r\n\r\nNOT_SERVING\n"));
  EXPECT_THAT(Get("/healthz", port), StartsWith("HTTP/1.0 503 "));
  EXPECT_THAT(Get("/livez", port), StartsWith("HTTP/1.0 200 "));
  EXPECT_TRUE(Serves(*server.NewStub())) << "during the lead time";
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().Wait(), 0);
}

TEST(DrainTest, RequestsInFlightAreAnsweredOrRefusedNeverLost) {
  TestServer server;
  constexpr int kClients = 4;
  const v1::RotateRequest request = LargeRequest();
  std::vector<grpc::Status> statuses(kClients);
  std::vector<v1::RotateResponse> responses(kClients);
  // The first answer starts the drain; the other requests are in flight. A second signal would cut
  // them.
  std::once_flag drain;
  std::vector<std::thread> clients;
  for (size_t i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      grpc::ClientContext context;
      statuses[i] = server.NewStub()->Rotate(&context, request, &responses[i]);
      std::call_once(drain, [&] { server.process().Signal(SIGTERM); });
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(server.process().Wait(), 0);
  int answered = 0;
  for (size_t i = 0; i < kClients; ++i) {
    if (statuses[i].ok()) {
      ++answered;
      const std::string& raw = responses[i].tensors(0).array().raw();
      EXPECT_TRUE(raw.size() == request.tensors(0).array().raw().size() && AllZero(raw));
    } else {
      EXPECT_EQ(statuses[i].error_code(), grpc::StatusCode::UNAVAILABLE)
          << statuses[i].error_message();
    }
  }
  EXPECT_GE(answered, 1);
}

TEST(DrainTest, UnixSocketFileIsRemoved) {
  const std::string path = TemporaryFolder() + "/rope.sock";
  TestServer server({"--listen=unix:" + path});
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().Wait(), 0);
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

// Connections of a real server that bring no calls, and what their clients learn of the end.

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
