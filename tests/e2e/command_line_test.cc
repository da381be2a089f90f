// The server's response to its flags, and its exit.
#include <google/protobuf/stubs/logging.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/version.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

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

TEST(CommandLineTest, AutoServesOnTheCpu) {
  TestServer server({"--device=auto"});
  const auto stub = server.NewStub();
  EXPECT_TRUE(Serves(*stub));
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(stub->GetServerInfo(&context, v1::GetServerInfoRequest(), &info).ok());
  ASSERT_EQ(info.devices_size(), 1);
  EXPECT_EQ(info.devices(0).name(), "cpu");
}

TEST(CommandLineTest, AddressThatIsTakenIsAnError) {
  TestServer server;
  EXPECT_THAT(RunProgram({ServerProgram(), "--listen=" + server.address()}),
              Exits(1, HasSubstr("--listen: got " + server.address())));
}

TEST(CommandLineTest, MetricsAddressOfIPv6ThatCannotBeIsAnErrorThatSaysWhatCan) {
  const Outcome outcome =
      RunProgram({ServerProgram(), "--listen=127.0.0.1:0", "--metrics_listen=[2001:db8::1]:0"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.output,
              HasSubstr("--metrics_listen: got [2001:db8::1]:0, want an IPv4 address, or"));
}

TEST(CommandLineTest, UnreadableModelFileIsAnError) {
  const Outcome outcome = RunProgram({ServerProgram(), "--model=mine=/does/not/exist.json"});
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("--model: got /does/not/exist.json"));
}

TEST(CommandLineTest, ModelFileThatDoesNotTellItsPairingIsAnError) {
  const std::string path = TemporaryFolder() + "/config.json";
  std::ofstream(path) << R"({"head_dim": 4})";
  const Outcome outcome =
      RunProgram({ServerProgram(), "--listen=127.0.0.1:0", "--model=mine=" + path});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.output,
              HasSubstr("model mine: rope.pairing: got nothing, want PAIRING_HALF"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("rope.error"))) << "the text alone";
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

TEST(CommandLineTest, SharedMemoryThatDoesNotFitBesideTheRestIsAWarning) {
  Process server({ServerProgram(), "--listen=127.0.0.1:0", "--enable_shared_memory",
                  "--shared_memory_bytes=65536GiB"},
                 Process::Errors::kOutput);
  std::string log = server.ReadLine();
  while (!absl::StrContains(log, "listening on ")) log += server.ReadLine();
  server.Signal(SIGTERM);
  EXPECT_THAT(log + server.ReadAll(), HasSubstr("--shared_memory_bytes: got 70368744177664, want"));
}

TEST(CommandLineTest, SocketModeIsThatOfEveryUnixSocket) {
  const std::string path = TemporaryFolder() + "/rope.sock";
  TestServer server({"--listen=unix:" + path, "--socket_mode=606"});
  struct stat about {};
  ASSERT_EQ(stat(path.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777U, 0606U);
  EXPECT_TRUE(Serves(*server.NewStub()));
}

}  // namespace
}  // namespace rope::testing
