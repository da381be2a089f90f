// GET /metrics over a plain socket, as Prometheus does.
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/ipc/file_descriptor.h"
#include "proto/version.h"
#include "tests/support/matchers.h"
#include "tests/support/metrics_page.h"
#include "tests/support/region_client.h"
#include "tests/support/ring_client.h"
#include "tests/support/rotate_stream.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

TEST(MetricsTest, BuildInfoAndCountsOfAnsweredCalls) {
  TestServer server({"--metrics_listen=127.0.0.1:0"});
  ASSERT_EQ(server.lines().size(), 1u);
  const std::string& line = server.lines().front();
  EXPECT_THAT(line, HasSubstr("metrics on http://127.0.0.1:"));
  const int port = std::stoi(line.substr(line.rfind(':') + 1));
  const auto stub = server.NewStub();
  ASSERT_TRUE(Serves(*stub));
  grpc::ClientContext context;
  v1::RotateResponse response;
  EXPECT_FALSE(stub->Rotate(&context, UnitRequest(-1), &response).ok());

  const std::string page = Get("/metrics", port);
  EXPECT_THAT(page, HasSubstr("rope_build_info{"));
  EXPECT_THAT(page, HasSubstr(absl::StrCat("version=\"", proto::kVersion, "\"")));
  EXPECT_THAT(page, ContainsRegex("revision=\"([0-9a-f]{12}|[0-9a-zA-Z._-]+)\""));
  EXPECT_THAT(page, HasSubstr("device=\"cpu\""));
  EXPECT_THAT(page, HasSubstr(CallsOf("Rotate") + " 1"));
  EXPECT_THAT(page, HasSubstr(CallsOf("Rotate", "INVALID_ARGUMENT") + " 1"));
}

TEST(MetricsTest, HealthHasPathsAndOthersAreNotFound) {
  TestServer server({"--metrics_listen=127.0.0.1:0"});
  const int port = MetricsPort(server);
  const std::pair<const char*, const char*> answers[] = {
      {"/livez", "\r\n\r\nALIVE\n"},
      {"/readyz", "\r\n\r\nSERVING\n"},
      {"/healthz", "\r\n\r\nSERVING\n"},
  };
  for (const auto& [path, body] : answers) {
    const std::string answer = Get(path, port);
    EXPECT_THAT(answer, StartsWith("HTTP/1.0 200 OK\r\n")) << path;
    EXPECT_THAT(answer, EndsWith(body)) << path;
  }
  for (const char* path : {"/status", "/ready", "/readyz/", "/metrics/x"}) {
    EXPECT_THAT(Get(path, port), StartsWith("HTTP/1.0 404 ")) << path;
  }
}

TEST(MetricsTest, StatusPageIsHtmlThatNamesFamiliesOfTheServerAndLoadsNothing) {
  TestServer server({"--metrics_listen=127.0.0.1:0"});
  const std::string answer = Get("/", MetricsPort(server));
  EXPECT_THAT(answer, StartsWith("HTTP/1.0 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/html; charset=utf-8\r\n"));
  EXPECT_THAT(answer, EndsWith("</html>\n"));
  EXPECT_THAT(answer, HasSubstr("content=\"default-src 'none'; connect-src 'self';"));
  for (const char* loads : {"http:", "https:", "src=", "url(", "@import", "innerHTML"}) {
    EXPECT_THAT(answer, Not(HasSubstr(loads)));
  }

  const auto types = Scrape(MetricsPort(server)).types();
  const std::regex name(R"((rope|grpc_server|process)_\w+)");
  std::set<std::string> named;
  for (std::sregex_iterator i(answer.begin(), answer.end(), name), end; i != end; ++i) {
    named.insert(i->str());
  }
  EXPECT_GE(named.size(), 10u);
  for (const std::string& series : named) {
    EXPECT_TRUE(types.contains(series) ||
                types.contains(std::string(absl::StripSuffix(series, "_count"))))
        << series;
  }
}

TEST(MetricsTest, UnknownMethodIsAnsweredWithTheServicesAndCounted) {
  TestServer server({"--metrics_listen=127.0.0.1:0"});
  grpc::GenericStub stub(server.NewChannel());
  grpc::CompletionQueue queue;
  for (const char* method :
       {"/inference.GRPCInferenceService/ServerLive", "/rope.v1.RopeService/Rotat", "/no\"slash"}) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    grpc::ByteBuffer reply;
    grpc::Status status;
    void* tag = nullptr;
    bool ok = false;
    const auto call = stub.PrepareUnaryCall(&context, method, grpc::ByteBuffer(), &queue);
    call->StartCall();
    call->Finish(&reply, &status, nullptr);
    ASSERT_TRUE(queue.Next(&tag, &ok));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << method;
    EXPECT_THAT(status.error_message(), HasSubstr("want a method of rope.v1.RopeService, "))
        << method;
    EXPECT_FALSE(status.error_details().empty()) << method;
  }
  const Exposition page = Scrape(MetricsPort(server));
  EXPECT_EQ(page.Value(R"(grpc_server_call_started_total{grpc_method="other"})"), 3);
  EXPECT_EQ(page.Value(R"(grpc_server_call_duration_seconds_count)"
                       R"({grpc_method="other",grpc_status="UNIMPLEMENTED"})"),
            3);
  EXPECT_TRUE(Serves(*server.NewStub()));
}

v1::RotateRequest RequestOfMebibytes(int64_t mebibytes) {
  v1::RotateRequest request = UnitRequest(0);
  v1::Array& array = *request.mutable_tensors(0)->mutable_array();
  array.clear_numbers();
  array.set_shape(0, mebibytes << 11);
  array.set_shape(1, 64);
  array.set_raw(std::string(static_cast<size_t>(mebibytes) << 20, '\0'));
  return request;
}

constexpr char kOfStreams[] = R"(rope_pipelined_requests_total{code="OK",transport="stream"})";

// The sample with the bytes of all messages, "rcvd" or "sent", of calls that ended with OK.
std::string SumOf(const std::string& direction, const std::string& method) {
  return absl::StrCat("grpc_server_call_", direction,
                      "_total_compressed_message_size_bytes_sum{grpc_method=\"rope.v1.RopeService/",
                      method, "\",grpc_status=\"OK\"}");
}

void SendMebibytes(v1::RopeService::Stub& stub, int64_t mebibytes) {
  grpc::ClientContext context;
  v1::RotateResponse response;
  ASSERT_TRUE(stub.Rotate(&context, RequestOfMebibytes(mebibytes), &response).ok());
}

double DirectBatches(int port) {
  return Scrape(port).Value(R"(rope_batches_total{closed_by="direct",device="cpu"})");
}

TEST(MetricsTest, RequestsRunWhereTheyArriveAndLargeOnesInSlices) {
  TestServer server({"--device=cpu", "--metrics_listen=127.0.0.1:0"});
  const int port = MetricsPort(server);
  const auto first = server.NewStub();
  const auto second = server.NewStub();
  for (int i = 0; i < 5; ++i) {
    SendMebibytes(*first, 1);
    SendMebibytes(*second, 1);
  }
  EXPECT_EQ(DirectBatches(port), 10);
  SendMebibytes(*first, 20);
  EXPECT_EQ(DirectBatches(port), 13) << "slices of 8 MiB";
}

TEST(MetricsTest, AnsweredRequestsMoveEveryMetricOfTheirPath) {
  TestServer server({"--metrics_listen=127.0.0.1:0"});
  const int port = MetricsPort(server);
  const auto stub = server.NewStub();
  const Exposition before = Scrape(port);
  EXPECT_EQ(before.Value("rope_tokens_total"), 0);
  constexpr int kRequests = 5;
  for (int i = 0; i < kRequests; ++i) ASSERT_TRUE(Serves(*stub));
  const Exposition after = Scrape(port);

  EXPECT_EQ(after.Value("rope_tokens_total"), kRequests);
  EXPECT_GT(after.Value(SumOf("rcvd", "Rotate")), 20 * kRequests);
  EXPECT_GT(after.Value(SumOf("sent", "Rotate")), 20 * kRequests);
  EXPECT_EQ(after.Value(R"(rope_batches_total{closed_by="direct",device="cpu"})"), kRequests);
  EXPECT_EQ(after.Value("rope_batch_requests_sum"), kRequests);
  EXPECT_EQ(after.Value("rope_batch_bytes_sum"), 8 * kRequests);
  EXPECT_GT(after.Value("rope_batch_duration_seconds_sum"), 0);
  EXPECT_EQ(after.Value(CallsOf("Rotate")), kRequests);
  double stages = 0;
  for (const char* stage : {"decode", "validate", "queue", "execute"}) {
    const std::string labels = absl::StrCat(R"({stage=")", stage, R"("})");
    EXPECT_EQ(after.Value("rope_request_stage_seconds_count" + labels), kRequests);
    stages += after.Value("rope_request_stage_seconds_sum" + labels);
  }
  EXPECT_GT(stages, 0);
  EXPECT_LE(stages, after.Value(R"(grpc_server_call_duration_seconds_sum)"
                                R"({grpc_method="rope.v1.RopeService/Rotate",grpc_status="OK"})"));
  EXPECT_EQ(after.Value("rope_table_cache_misses_total"), 1);
  EXPECT_EQ(after.Value("rope_table_cache_hits_total"), kRequests - 1);
  EXPECT_EQ(after.Value("rope_table_cache_pages"), 1);
  EXPECT_EQ(after.Value("rope_table_cache_tables"), 1);
  EXPECT_GT(after.Value(R"(rope_budget_used{budget="table_bytes"})"), 0);
  EXPECT_GT(after.Value("rope_models"), 0);
  EXPECT_EQ(after.Value("rope_requests_in_flight"), 0);
  EXPECT_EQ(after.Value("rope_streams"), 0);
  // The bytes of a reply count until the server learns that the client has taken it.
  while (Scrape(port).Value(R"(rope_budget_used{budget="request_bytes"})") != 0)
    std::this_thread::yield();
  EXPECT_EQ(after.Value("rope_draining"), 0);
  EXPECT_EQ(after.Value(R"(rope_device_faults_total{device="cpu"})"), 0);
  EXPECT_GT(after.Value("process_resident_memory_bytes"), 1 << 20);
  EXPECT_GT(after.Value("process_open_fds"), 3);
  for (const auto& [sample, value] : before.samples()) {
    const std::string name = sample.substr(0, sample.find('{'));
    for (const char* suffix : {"_total", "_bucket", "_count", "_sum"}) {
      if (!absl::EndsWith(name, suffix)) continue;
      EXPECT_GE(after.Value(sample), value) << sample;
    }
  }
}

double Rotations(const Exposition& page, const std::string& model, const std::string& operation,
                 const std::string& transport) {
  return page.Value(absl::StrCat("rope_rotations_total{model=\"", model, "\",operation=\"",
                                 operation, "\",transport=\"", transport, "\"}"));
}

TEST(MetricsTest, RotationsAreCountedByTheWayOfTheirTensors) {
  const std::string path = TemporaryFolder() + "/s";
  TestServer server(
      {"--enable_shared_memory", "--listen=unix:" + path, "--metrics_listen=127.0.0.1:0"});
  ASSERT_TRUE(Serves(*server.NewStub()));
  RingClient client(path);
  const Sample sample;
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(client.RotatesRight());
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(Text(Rotate(client.stub(), sample.InPlace(client.id(), 0))), "OK");
  }
  ASSERT_NE(client.Rotate(UnitRequest(-1)), "OK");
  const Exposition page = Scrape(MetricsPort(server));
  EXPECT_EQ(Rotations(page, "(config)", "rotate", "inline"), 1);
  EXPECT_EQ(Rotations(page, "(config)", "rotate", "ring"), 2);
  EXPECT_EQ(Rotations(page, "(config)", "rotate", "memfd"), 3);
  EXPECT_EQ(page.Value(CallsOf("Rotate")), 1 + 3) << "what comes through the ring is no call";
  EXPECT_EQ(page.Value(R"(rope_pipelined_requests_total{code="OK",transport="ring"})"), 2);
  EXPECT_EQ(
      page.Value(R"(rope_pipelined_requests_total{code="INVALID_ARGUMENT",transport="ring"})"), 1);
}

TEST(MetricsTest, RotationsAreCountedByModelAndOperation) {
  const std::string path = TemporaryFolder() + "/config.json";
  std::ofstream(path) << R"({"model_type": "llama"})";
  TestServer server({"--metrics_listen=127.0.0.1:0", "--model=mine=" + path});
  const auto stub = server.NewStub();
  for (int round = 0; round < 2; ++round) {
    v1::RotateRequest request = UnitRequest(1);
    request.mutable_rope()->set_model("mine");
    ASSERT_TRUE(Rotate(*stub, request).ok());
    request.set_operation(v1::OPERATION_INVERSE);
    ASSERT_TRUE(Rotate(*stub, request).ok());
  }
  const Exposition page = Scrape(MetricsPort(server));
  EXPECT_EQ(Rotations(page, "mine", "rotate", "inline"), 2);
  EXPECT_EQ(Rotations(page, "mine", "inverse", "inline"), 2);
}

// The server hears that a stream has ended a little later than the client does.
void AwaitCalls(int port, const std::string& series, double count) {
  while (Scrape(port).Value(series) != count) std::this_thread::yield();
}

TEST(MetricsTest, GrpcCountsAStreamOnceAndItsRequestsNever) {
  TestServer server({"--metrics_listen=127.0.0.1:0"});
  const int port = MetricsPort(server);
  const auto stub = server.NewStub();
  v1::RotateResponse response;
  {
    grpc::ClientContext context;
    const auto stream = OpenStream(*stub, context);
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(stream->Write(UnitRequest(1)));
      ASSERT_TRUE(stream->Read(&response));
    }
    const Exposition page = Scrape(port);
    EXPECT_EQ(page.Value("rope_streams"), 1);
    EXPECT_EQ(page.Value(kOfStreams), 3);
    EXPECT_EQ(Rotations(page, "(config)", "rotate", "stream"), 3);
    EXPECT_EQ(
        page.Value(
            R"(grpc_server_call_started_total{grpc_method="rope.v1.RopeService/RotateStream"})"),
        1);
    EXPECT_EQ(page.Value(CallsOf("RotateStream")), -1) << "it has not ended";
    stream->WritesDone();
    EXPECT_TRUE(stream->Finish().ok());
  }
  AwaitCalls(port, CallsOf("RotateStream"), 1);
  const Exposition page = Scrape(port);
  EXPECT_GT(page.Value(SumOf("rcvd", "RotateStream")), 3 * 20);
  EXPECT_GT(page.Value(SumOf("sent", "RotateStream")), 3 * 20);
  grpc::ClientContext context;
  const auto stream = OpenStream(*stub, context);
  ASSERT_TRUE(stream->Write(UnitRequest(1)));
  ASSERT_TRUE(stream->Read(&response));
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  AwaitCalls(port, CallsOf("RotateStream", "CANCELLED"), 1);
}

TEST(MetricsTest, CallThatIsRefusedAtItsHeadersIsCounted) {
  const std::string access = TemporaryFolder() + "/access.json";
  std::ofstream(access) << absl::StrCat(R"({"identities": [{"name": "a", "tokens_sha256": [")",
                                        std::string(64, '0'), R"("], "rights": ["rotate"]}]})");
  TestServer server({"--metrics_listen=127.0.0.1:0", "--access_file=" + access});
  EXPECT_FALSE(Serves(*server.NewStub()));
  const Exposition page = Scrape(MetricsPort(server));
  EXPECT_EQ(page.Value(CallsOf("Rotate", "UNAUTHENTICATED")), 1);
  EXPECT_EQ(
      page.Value(R"(grpc_server_call_started_total{grpc_method="rope.v1.RopeService/Rotate"})"), 1);
}

TEST(MetricsTest, BoundsOfGrpcAreWrittenAsOtherServersWriteThem) {
  TestServer server({"--metrics_listen=127.0.0.1:0"});
  const Exposition page = Scrape(MetricsPort(server));
  for (const char* bound : {"0", "1e-05", "0.0003", "0.0006", "0.0008", "0.065", "100", "+Inf"}) {
    EXPECT_EQ(page.Value(absl::StrCat("grpc_server_call_duration_seconds_bucket{grpc_method=",
                                      "\"rope.v1.RopeService/Rotate\",grpc_status=\"OK\",le=\"",
                                      bound, "\"}")),
              0)
        << bound;
  }
}

// Connections that have each sent half of a request.
std::vector<proto::FileDescriptor> HalfSent(int port, int connections) {
  const std::string half = "GET /metrics HTTP/1.1\r\nX: ";
  std::vector<proto::FileDescriptor> clients;
  for (int i = 0; i < connections; ++i) {
    clients.push_back(ConnectLoopback(port));
    EXPECT_EQ(write(clients.back().get(), half.data(), half.size()),
              static_cast<ssize_t>(half.size()));
  }
  return clients;
}

// The fastest of a few: the machine may stall.
double SecondsOfAScrape(int port) {
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(Scrape(port).Value("rope_draining"), 0);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    seconds.push_back(took.count());
  }
  return *std::min_element(seconds.begin(), seconds.end());
}

TEST(MetricsTest, RequestsThatDoNotEndDelayNoScrapeForLong) {
  TestServer server({"--metrics_listen=127.0.0.1:0"});
  const int port = MetricsPort(server);
  const auto few = HalfSent(port, 15);
  EXPECT_LT(SecondsOfAScrape(port), 0.5) << "a thread is left";
  const auto many = HalfSent(port, 16);
  EXPECT_LT(SecondsOfAScrape(port), 2.5) << "each thread is held for a second";
}

}  // namespace
}  // namespace rope::testing
