// The server's log on standard error: a bounded number of lines whatever clients do, client text in
// quotes, and no wait for the reader of the log.
#include <fcntl.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "proto/ipc/hello.h"
#include "tests/support/metrics_page.h"
#include "tests/support/shared_memory.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"
#include "tests/support/unix_socket.h"

namespace rope::testing {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

// As in limits.h.
constexpr double kLinesPerSecond = 20;
constexpr double kBurstLines = 20;

double SecondsSince(steady_clock::time_point begin) {
  return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

using Labels = std::map<std::string, std::string>;

grpc::Status Refused(v1::RopeService::Stub& stub, const std::string& id = "refused",
                     const Labels& labels = {}) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(10));
  v1::RotateRequest request = UnitRequest(-1);
  request.set_request_id(id);
  request.mutable_labels()->insert(labels.begin(), labels.end());
  v1::RotateResponse response;
  return stub.Rotate(&context, request, &response);
}

bool ServesInTime(v1::RopeService::Stub& stub) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(10));
  v1::RotateResponse response;
  return stub.Rotate(&context, UnitRequest(1), &response).ok();
}

// Fills the pipe that is the process's standard error, through a separate file description.
void FillErrors(pid_t pid) {
  const std::string path = absl::StrCat("/proc/", pid, "/fd/2");
  const proto::FileDescriptor end(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_TRUE(end.ok());
  const std::string page(4096, '-');
  while (write(end.get(), page.data(), page.size()) > 0) {
  }
}

// Stops the server and returns the log lines that contain `text`.
std::vector<std::string> LinesOf(TestServer& server, const std::string& text) {
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().Wait(), 0);
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(server.process().ReadErrors(), '\n')) {
    if (absl::StrContains(line, text)) lines.emplace_back(line);
  }
  return lines;
}

// Waits for the next log line that contains `text`.
std::string NextLineOf(TestServer& server, const std::string& text) {
  std::string line;
  do {
    line = server.process().ReadErrorLine();
  } while (!line.empty() && !absl::StrContains(line, text));
  return line;
}

// The sum of the left_out fields.
int64_t LeftOut(const std::vector<std::string>& lines) {
  const std::string field = " left_out=";
  int64_t sum = 0;
  for (const std::string& line : lines) {
    const size_t at = line.find(field);
    int64_t lines_left_out = 0;
    if (at == std::string::npos) continue;
    EXPECT_TRUE(absl::SimpleAtoi(line.substr(at + field.size()), &lines_left_out)) << line;
    sum += lines_left_out;
  }
  return sum;
}

// The log of a server from its start to its end.
std::string LogOfARun(const std::vector<std::string>& flags) {
  TestServer server(flags, Process::Errors::kPipe);
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().Wait(), 0);
  return server.process().ReadErrors();
}

TEST(LogTest, StartIsOneLine) {
  const std::string log = LogOfARun({"--device=auto", "--threads=1", "--memory_bytes=1GiB"});
  EXPECT_THAT(log, ContainsRegex(" info started version=[0-9.]+ revision=[^ ]+ pid=[0-9]+ "));
  EXPECT_THAT(log, HasSubstr(" threads=1 memory_bytes=1073741824 max_message_bytes=134217728 "));
  EXPECT_THAT(log, ContainsRegex(" listen=127.0.0.1:[0-9]+ metrics_listen=off tls=off "
                                 "access=everybody models=[0-9]+ model_files=none\n"));
  EXPECT_THAT(log, Not(HasSubstr(" warning ")));
}

TEST(LogTest, StartWarnsOfModelFilesAndOfFlagsWithoutEffect) {
  const std::string folder = TemporaryFolder();
  const std::string good = folder + "/good.json";
  std::ofstream(good) << R"({"model_type": "llama", "head_dim": 4, "rope_theta": 7})";
  const std::string bad = folder + "/bad.json";
  std::ofstream(bad) << R"({"model_type": "llama", "head_dim": 4, "rope_theta": 7,
             "rope_scaling": {"type": "linear", "factor": 0.5}})";
  const std::string log =
      LogOfARun({"--model=llama-3-8b=" + good, "--model=mine=" + bad, "--socket_mode=600",
                 "--enable_shared_memory", "--shared_memory_bytes=65536GiB"});
  EXPECT_THAT(log, HasSubstr("--shared_memory_bytes: got 70368744177664, want"));
  EXPECT_THAT(log, HasSubstr(" model_files=llama-3-8b:0,mine:1\n"));
  EXPECT_THAT(log, HasSubstr(" warning model=llama-3-8b replaces the preset of this name\n"));
  EXPECT_THAT(log, ContainsRegex(" warning model=mine warning=\"factor 0.5 [^\n]*\"\n"));
  EXPECT_THAT(log, HasSubstr(" warning --socket_mode has no effect: no --listen is unix:PATH\n"));
}

TEST(LogTest, StandardErrorThatIsNotReadHoldsUpNeitherCallsNorTheEnd) {
  TestServer server({}, Process::Errors::kPipe);
  FillErrors(server.process().pid());
  const auto stub = server.NewStub();
  for (int i = 0; i < 2000; ++i) {
    ASSERT_EQ(Refused(*stub).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << i;
  }
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(ServesInTime(*stub)) << i;
  const auto begin = steady_clock::now();
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().Wait(), 0);
  EXPECT_LT(SecondsSince(begin), 10);
}

TEST(LogTest, IdThatLooksLikeOtherFieldsIsOneFieldOfOneLine) {
  TestServer server({}, Process::Errors::kPipe);
  const auto stub = server.NewStub();
  EXPECT_FALSE(Refused(*stub, "a\" code=OK x=\"").ok());
  EXPECT_FALSE(Refused(*stub, "b\ncode=OK\x1b[2J").ok());
  const std::vector<std::string> lines = LinesOf(server, "code=");
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_THAT(lines[0], HasSubstr(R"( info request="a\" code=OK x=\"" method=Rotate )"
                                  R"(code=INVALID_ARGUMENT message=")"));
  EXPECT_THAT(lines[1], HasSubstr(R"(request="b\ncode=OK\x1b[2J" method=Rotate code=INVALID)"));
}

TEST(LogTest, LabelsStandInTheRequestsLineAndCannotForgeAnother) {
  TestServer server({}, Process::Errors::kPipe);
  const auto stub = server.NewStub();
  EXPECT_FALSE(Refused(*stub, "a", {{"step", "3"}, {"pod", "x\" code=OK\n"}}).ok());
  EXPECT_FALSE(Refused(*stub, "b").ok());
  const std::vector<std::string> lines = LinesOf(server, "code=");
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_THAT(lines[0], HasSubstr(R"( labels="pod=x\" code=OK\n,step=3")"));
  EXPECT_THAT(lines[1], ::testing::Not(HasSubstr("labels=")));
}

TEST(LogTest, RefusedCallsWithoutEndMakeFewLinesAndACount) {
  TestServer server({"--metrics_listen=127.0.0.1:0"}, Process::Errors::kPipe);
  const auto stub = server.NewStub();
  const auto begin = steady_clock::now();
  int64_t calls = 0;
  while (calls < 500 || SecondsSince(begin) < 0.3) {
    ASSERT_EQ(Refused(*stub).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    ++calls;
  }
  const double lines_max = kBurstLines + SecondsSince(begin) * kLinesPerSecond + 1;
  const double dropped =
      Scrape(MetricsPort(server)).Value(R"(rope_log_lines_dropped_total{reason="rate_limit"})");
  const std::vector<std::string> lines = LinesOf(server, "code=INVALID_ARGUMENT");
  const auto written = static_cast<int64_t>(lines.size());
  EXPECT_GE(written, kBurstLines);
  EXPECT_LE(static_cast<double>(written), lines_max);
  EXPECT_EQ(dropped, static_cast<double>(calls - written));
  EXPECT_GT(LeftOut(lines), 0);
  EXPECT_LE(LeftOut(lines), calls - written);
}

TEST(LogTest, RefusedHellosWithoutEndMakeFewLinesAndACount) {
  const std::string path = TemporaryFolder() + "/s";
  TestServer server({"--enable_shared_memory", "--listen=unix:" + path}, Process::Errors::kPipe);
  const SharedMemory unsealed = SharedMemory::Memfd(4096, 0);
  const auto begin = steady_clock::now();
  int64_t hellos = 0;
  while (hellos < 200 || SecondsSince(begin) < 0.3) {
    const proto::FileDescriptor client = ConnectUnix(path);
    ASSERT_OK(answer, proto::ExchangeHello(client.get(), {4096}, {unsealed.fd()}));
    ++hellos;
  }
  const double lines_max = kBurstLines + SecondsSince(begin) * kLinesPerSecond + 1;
  const std::vector<std::string> lines = LinesOf(server, " hello ");
  EXPECT_LE(static_cast<double>(lines.size()), lines_max);
  ASSERT_FALSE(lines.empty());
  EXPECT_THAT(lines.front(), HasSubstr("hello code=FAILED_PRECONDITION message=\"hello: got one"));
  EXPECT_GT(LeftOut(lines), 0);
}

TEST(LogTest, LineHasTheIdsThatTheCallerSent) {
  TestServer server({}, Process::Errors::kPipe);
  const auto stub = server.NewStub();
  grpc::ClientContext context;
  context.AddMetadata("x-request-id", "mine 7");
  context.AddMetadata("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
  v1::DescribeResponse response;
  EXPECT_FALSE(stub->Describe(&context, v1::DescribeRequest(), &response).ok());
  EXPECT_THAT(NextLineOf(server, " method=Describe "),
              HasSubstr(" peer=\"ip:loopback\" x_request_id=\"mine 7\" "
                        "trace_id=\"0af7651916cd43dd8448eb211c80319c\" duration_us="));
  grpc::ClientContext other;
  other.AddMetadata("traceparent", "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
  EXPECT_FALSE(stub->Describe(&other, v1::DescribeRequest(), &response).ok());
  EXPECT_THAT(NextLineOf(server, " method=Describe "), Not(HasSubstr("trace_id"))) << "no hex";
}

TEST(LogTest, SignalsThatOthersDieOfDoNotEndTheServer) {
  TestServer server({}, Process::Errors::kPipe);
  const auto stub = server.NewStub();
  server.process().Signal(SIGXFSZ);
  EXPECT_TRUE(ServesInTime(*stub));
  server.process().Signal(SIGHUP);
  EXPECT_THAT(NextLineOf(server, " SIGHUP: reads "), HasSubstr(" SIGHUP: reads "));
  EXPECT_TRUE(ServesInTime(*stub));
}

// A server that a shell starts with `redirections` of its standard descriptors.
Process ServerWith(const std::string& redirections) {
  return Process(
      {"/bin/sh", "-c", "exec \"$0\" --listen=127.0.0.1:0 " + redirections, ServerProgram()});
}

// Its only line says where it listens.
std::unique_ptr<v1::RopeService::Stub> StubOf(Process& server) {
  const std::string line = server.ReadLine();
  return v1::RopeService::NewStub(
      grpc::CreateChannel(line.substr(line.rfind(' ') + 1), grpc::InsecureChannelCredentials()));
}

TEST(LogTest, FileThatMayNotGrowHoldsUpNeitherCallsNorTheEnd) {
  const std::string path = TemporaryFolder() + "/log";
  Process server = ServerWith("2>" + path);
  const auto stub = StubOf(server);
  const rlimit limit = {1, RLIM_INFINITY};
  ASSERT_EQ(prlimit(server.pid(), RLIMIT_FSIZE, &limit, nullptr), 0);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(Refused(*stub).ok());
  EXPECT_TRUE(ServesInTime(*stub));
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0);
}

TEST(LogTest, StandardDescriptorsThatAreClosedAreNoSockets) {
  Process server = ServerWith("<&- 2>&-");
  const auto stub = StubOf(server);
  EXPECT_FALSE(Refused(*stub).ok());
  EXPECT_TRUE(ServesInTime(*stub));
  for (const int fd : {STDIN_FILENO, STDERR_FILENO}) {
    EXPECT_EQ(std::filesystem::read_symlink(absl::StrCat("/proc/", server.pid(), "/fd/", fd)),
              "/dev/null");
  }
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait(), 0);
}

}  // namespace
}  // namespace rope::testing
