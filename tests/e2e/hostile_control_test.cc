// Attacks through the control plane, health and reflection.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpc/health/v1/health.pb.h"
#include "proto/wire/stream_message.h"
#include "tests/support/hostile_requests.h"
#include "tests/support/http2_peer.h"
#include "tests/support/matchers.h"
#include "tests/support/metrics_page.h"
#include "tests/support/region_client.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/unread_replies.h"
#include "tests/support/watched_server.h"

namespace rope::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Calls of the control plane that cost far more than their bytes: rows of the widest heads, replies
// that stay unread, configs that take long to parse. Rotations of others must be answered
// meanwhile.

using Stub = v1::RopeService::Stub;

constexpr int kResourceExhausted = grpc::StatusCode::RESOURCE_EXHAUSTED;
constexpr int64_t kHeadDimMax = 65536;
constexpr int64_t kRowBytes = 32 + kHeadDimMax / 2 * 16;
constexpr std::string_view kDescribe = "/rope.v1.RopeService/Describe";
constexpr std::string_view kListModels = "/rope.v1.RopeService/ListModels";
const std::string kExhausted = absl::StrCat(kResourceExhausted, " ");

void SetDeadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + seconds(30));
}

v1::DescribeRequest WidestHead(int positions) {
  v1::DescribeRequest request;
  request.mutable_rope()->mutable_config()->set_head_dim(kHeadDimMax);
  request.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  for (int i = 0; i < positions; ++i) request.add_positions(i);
  return request;
}

std::string Describe(Stub& stub, const v1::DescribeRequest& request) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::DescribeResponse response;
  return Text(stub.Describe(&context, request, &response));
}

std::string Fingerprint(Stub& stub, const v1::FingerprintRequest& request) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::FingerprintResponse response;
  return Text(stub.Fingerprint(&context, request, &response));
}

milliseconds TimeOf(const std::function<void()>& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
}

// The time of each of `count` calls, which are right.
std::vector<milliseconds> TimesOfRotations(Stub& stub, int count) {
  std::vector<milliseconds> times;
  for (int i = 0; i < count; ++i) {
    times.push_back(TimeOf([&] { EXPECT_TRUE(Serves(stub)); }));
  }
  std::sort(times.begin(), times.end());
  return times;
}

// Runs `call` again and again on `count` threads while `meanwhile` runs.
void CallMeanwhile(int count, const std::function<void()>& call,
                   const std::function<void()>& meanwhile) {
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&] {
      while (!stop) call();
    });
  }
  meanwhile();
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST(HostileControlTest, RowsOfTheWidestHeadAtEveryPositionAreRefusedAtOnce) {
  WatchedServer watched;
  const auto stub = watched.server().NewStub();
  const auto took = TimeOf([&] {
    EXPECT_THAT(Describe(*stub, WidestHead(4096)),
                StartsWith(absl::StrCat(kExhausted, "positions: got 4096 rows of ", kRowBytes)));
  });
  EXPECT_LT(took, seconds(3));
  watched.ExpectUnharmed("rows of 65536 channels at 4096 positions");
}

TEST(HostileControlTest, RotationsAreAnsweredWhileTheLargestDescriptionsAreComputed) {
  WatchedServer watched;
  const auto stub = watched.server().NewStub();
  const auto other = watched.server().NewStub();
  const v1::DescribeRequest request = WidestHead(30);
  EXPECT_EQ(Describe(*stub, request), "OK");
  std::vector<milliseconds> rotations;
  CallMeanwhile(
      4, [&] { EXPECT_THAT(Describe(*stub, request), AnyOf("OK", StartsWith(kExhausted))); },
      [&] { rotations = TimesOfRotations(*other, 100); });
  std::printf("measured: rotations beside descriptions: median %d ms, slowest %d ms\n",
              static_cast<int>(rotations[50].count()), static_cast<int>(rotations[99].count()));
  EXPECT_LT(rotations[50], milliseconds(100));
  watched.ExpectUnharmed("descriptions of 15 MiB");
}

// Bytes that the server counts for requests and for replies that are not taken.
int64_t AdmittedBytes(v1::RopeService::Stub& stub) {
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  EXPECT_EQ(Text(stub.GetServerInfo(&context, {}, &info)), "OK");
  for (const v1::Budget& budget : info.budgets()) {
    if (budget.name() == "request_bytes") return budget.used();
  }
  return 0;
}

void ExpectBounded(WatchedServer& watched, std::string_view path, const std::string& message,
                   int count, int64_t reply_bytes) {
  const auto stub = watched.server().NewStub();
  {
    Http2Peer peer = watched.NewPeer(/*window=*/0);
    CallWithoutReading(peer, path, message, count);
    // A sanitizer's server may take longer than replies may wait: then it closes the connection.
    if (!kMemoryIsMeasured && peer.lost()) return watched.ExpectUnharmed("replies that wait");
    ASSERT_FALSE(peer.lost());
    const UnreadReplies calls = CountUnread(peer);
    std::printf("measured: %d replies of %d KiB held, %d calls refused, %d of them with a delay\n",
                calls.held, static_cast<int>(reply_bytes / 1024), calls.refused,
                calls.refused_with_pushback);
    EXPECT_EQ(calls.held + calls.refused + calls.cancelled, count);
    EXPECT_EQ(calls.refused, calls.refused_with_pushback);
    EXPECT_GE(calls.held, 1);
    EXPECT_GE(AdmittedBytes(*stub), calls.held * reply_bytes) << "each held reply counts";
    EXPECT_LE(calls.held * reply_bytes, watched.memory_bytes() / 4) << "a connection's part";
    if (count * reply_bytes > watched.memory_bytes() / 4) {
      EXPECT_GE(calls.refused + calls.cancelled, 1);
    }
    EXPECT_TRUE(Serves(*stub));
    watched.ExpectUnharmed("unread replies of the control plane");
  }
  watched.ExpectMemoryGivenBack("unread replies of the control plane, the connection closed");
}

TEST(HostileControlTest, UnreadListsOfModelsCountUntilTheyAreTaken) {
  constexpr int kModels = 32;
  constexpr int64_t kModelBytes = 64 * 128;  // the names
  const std::string folder = TemporaryFolder();
  for (int i = 0; i < kModels; ++i) {
    std::ofstream(absl::StrCat(folder, "/aaa", i, ".json")) << ConfigOfManyLayerTypes();
  }
  WatchedServer watched(
      {.memory_bytes = 256 * kMiB, .message_bytes = 16 * kMiB, .flags = {"--model_dir=" + folder}});
  v1::ListModelsRequest list;
  list.set_page_size(1000);
  ExpectBounded(watched, kListModels, list.SerializeAsString(), 100, kModels * kModelBytes);
}

TEST(HostileControlTest, UnreadDescriptionsCountUntilTheyAreTaken) {
  constexpr int kRows = 12;
  WatchedServer watched({.memory_bytes = 256 * kMiB, .message_bytes = 16 * kMiB});
  ExpectBounded(watched, kDescribe, WidestHead(kRows).SerializeAsString(), 40, kRows * kRowBytes);
}

TEST(HostileControlTest, MessageOfManyPositionsIsRefusedBeforeItIsParsed) {
  if (!kMemoryIsMeasured) GTEST_SKIP() << "a sanitizer's memory uses up the server's";
  constexpr int kThreads = 8;
  WatchedServer watched({.memory_bytes = 256 * kMiB, .message_bytes = 32 * kMiB});
  v1::DescribeRequest request = WidestHead(0);
  request.mutable_positions()->Resize(15 * 1024 * 1024, 1);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      const auto stub = watched.server().NewStub();
      EXPECT_THAT(Describe(*stub, request), StartsWith(kExhausted));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(Describe(*watched.server().NewStub(), request),
              HasSubstr("want at most 4194304 of this method"));
  watched.ExpectUnharmed("15 MiB of positions to describe");
}

// The error of the first of them, or the time that all took.
struct ControlCalls {
  std::string error;
  milliseconds took{};
};

// A model that is described and identified, its table, and the list of models.
ControlCalls CallControlPlane(Stub& stub) {
  ControlCalls calls;
  const auto call = [&calls](const auto& method, const auto& request, auto response) {
    grpc::ClientContext context;
    SetDeadline(context);
    const std::string text = Text(method(&context, request, &response));
    if (calls.error.empty() && text != "OK") calls.error = text;
  };
  v1::DescribeRequest describe;
  describe.mutable_rope()->set_model("llama-3.1-8b");
  for (int i = 0; i < 256; ++i) describe.add_positions(i);
  v1::GetTablesRequest tables;
  *tables.mutable_rope() = describe.rope();
  tables.mutable_positions()->mutable_range()->set_end(64);
  v1::FingerprintRequest fingerprint;
  *fingerprint.mutable_key()->mutable_rope() = describe.rope();
  calls.took = TimeOf([&] {
    call(std::bind_front(&Stub::Fingerprint, &stub), fingerprint, v1::FingerprintResponse());
    call(std::bind_front(&Stub::Describe, &stub), describe, v1::DescribeResponse());
    call(std::bind_front(&Stub::GetTables, &stub), tables, v1::GetTablesResponse());
    call(std::bind_front(&Stub::ListModels, &stub), v1::ListModelsRequest(),
         v1::ListModelsResponse());
  });
  return calls;
}

// Three connections with ten calls each, as many as one thread can never keep up with.
TEST(HostileControlTest, ControlCallsAreAnsweredBesideThreeFloodsOfTables) {
  constexpr size_t kFloods = 3;
  constexpr int kCallsOfEach = 10;
  constexpr int kRounds = 11;
  WatchedServer watched;
  const auto own = watched.server().NewStub();
  const auto other = v1::RopeService::NewStub(
      grpc::CreateChannel("unix:" + watched.path(), grpc::InsecureChannelCredentials()));
  std::vector<std::unique_ptr<Stub>> floods;
  while (floods.size() < kFloods) floods.push_back(watched.server().NewStub());
  v1::GetTablesRequest tables;
  tables.mutable_rope()->mutable_config()->set_head_dim(64);
  tables.mutable_rope()->set_pairing(v1::PAIRING_HALF);
  tables.mutable_positions()->mutable_range()->set_end(65536);
  std::atomic<size_t> turn = 0;
  std::atomic<int> answered = 0;
  const auto flood = [&] {
    grpc::ClientContext context;
    SetDeadline(context);
    v1::GetTablesResponse response;
    const std::string text = Text(floods[turn++ % kFloods]->GetTables(&context, tables, &response));
    EXPECT_THAT(text, AnyOf("OK", StartsWith(kExhausted)));
    if (text == "OK") ++answered;
  };
  milliseconds slowest[2] = {};
  CallMeanwhile(kFloods * kCallsOfEach, flood, [&] {
    for (int i = 0; i < kRounds; ++i) {
      for (const bool is_other : {false, true}) {
        const ControlCalls calls = CallControlPlane(is_other ? *other : *own);
        EXPECT_EQ(calls.error, "") << (is_other ? "another owner" : "the flood's owner");
        slowest[is_other] = std::max(slowest[is_other], calls.took);
      }
    }
  });
  std::printf(
      "measured: four control calls beside floods of tables take at most %d ms of the "
      "flood's owner, %d of another; %d tables were answered\n",
      static_cast<int>(slowest[0].count()), static_cast<int>(slowest[1].count()), answered.load());
  for (const milliseconds took : slowest) EXPECT_LT(took, seconds(8));
  watched.ExpectUnharmed("floods of tables");
}

TEST(HostileControlTest, RotationsAreAnsweredWhileLargeConfigsAreParsed) {
  constexpr int kThreads = 6;
  std::string json = R"({"head_dim": 64, "unknown": [0)";
  while (json.size() < 1000 * 1024) json += ",{}";
  json += "]}";
  WatchedServer watched;
  const auto stub = watched.server().NewStub();
  const auto other = watched.server().NewStub();
  v1::FingerprintRequest request;
  request.mutable_key()->mutable_rope()->set_config_json(json);
  request.mutable_key()->mutable_rope()->set_pairing(v1::PAIRING_HALF);
  const auto call = [&] {
    EXPECT_THAT(Fingerprint(*stub, request), AnyOf("OK", StartsWith(kExhausted)));
  };
  call();
  const milliseconds alone = TimeOf(call);
  std::vector<milliseconds> rotations;
  CallMeanwhile(kThreads, call, [&] { rotations = TimesOfRotations(*other, 200); });
  std::printf("measured: a config of 1 MiB is identified in %d ms; rotations meanwhile: %d ms\n",
              static_cast<int>(alone.count()), static_cast<int>(rotations[100].count()));
  EXPECT_LT(rotations[100], std::max(alone, milliseconds(2)));
  watched.ExpectUnharmed("configs of 1 MiB");
}

// Clients that make health and reflection keep memory for each stream, and clients that do not read
// their errors.

constexpr int kUnimplemented = grpc::StatusCode::UNIMPLEMENTED;
constexpr std::string_view kWatch = "/grpc.health.v1.Health/Watch";
constexpr std::string_view kReflection =
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

bool AreOver(Http2Peer& peer, const std::vector<uint32_t>& streams) {
  for (const uint32_t stream : streams) {
    if (!peer.IsOver(stream)) return false;
  }
  return true;
}

TEST(HostileServicesTest, WatchesOfLongNamesAreRefused) {
  constexpr int kWatches = 64;
  WatchedServer watched;
  {
    Http2Peer peer = watched.NewPeer();
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(std::string(4 * kMiB, 'x'));
    const std::string message = request.SerializeAsString();
    std::vector<uint32_t> streams;
    for (int i = 0; i < kWatches && !peer.lost(); ++i) {
      streams.push_back(peer.StartCall(kWatch));
      peer.SendPart(streams.back(), message, message.size(), /*last=*/true);
    }
    EXPECT_TRUE(peer.Await([&] { return AreOver(peer, streams); }, seconds(20)));
    for (const uint32_t stream : streams) EXPECT_EQ(peer.stream(stream).code, kResourceExhausted);
    watched.ExpectUnharmed("64 watches of names of 4 MiB");
  }
  watched.ExpectMemoryGivenBack("64 watches of names of 4 MiB");
}

// gRPC serves three, and for as long as their connection lives, which has no call that counts.
TEST(HostileServicesTest, ReflectionStreamsAreFewAndEndWithTheirConnection) {
  constexpr int kStreams = 100;
  const std::string message(8 * kMiB, '\0');
  WatchedServer watched({.flags = {"--handshake_timeout=5s"}});
  {
    Http2Peer peer = watched.NewPeer();
    std::vector<uint32_t> streams;
    for (int i = 0; i < kStreams && !peer.lost(); ++i) {
      streams.push_back(peer.StartCall(kReflection));
      peer.SendPart(streams.back(), message, message.size() / 2, /*last=*/false, milliseconds(300));
    }
    EXPECT_TRUE(peer.Await([&] { return peer.lost(); }, seconds(20)));
    const auto is_open = [&](uint32_t stream) { return !peer.stream(stream).ended(); };
    EXPECT_LE(std::ranges::count_if(streams, is_open), 3);
    watched.ExpectUnharmed("100 reflection streams with half of a message");
  }
  watched.ExpectMemoryGivenBack("100 reflection streams with half of a message");
}

// Calls of a method that no service has; each announces 8 MiB and sends half of it.
TEST(HostileServicesTest, MessagesToUnknownMethodsAreNotRead) {
  constexpr int kCalls = 200;
  const std::string message(8 * kMiB, '\0');
  WatchedServer watched;
  {
    Http2Peer peer = watched.NewPeer(/*window=*/0);
    std::vector<uint32_t> streams;
    for (int i = 0; i < kCalls && !peer.lost(); ++i) {
      streams.push_back(peer.StartCall("/no.Service/Method"));
      peer.SendPart(streams.back(), message, message.size() / 2, /*last=*/false, milliseconds(100));
    }
    EXPECT_TRUE(peer.Await([&] { return AreOver(peer, streams); }, seconds(20)));
    for (const uint32_t stream : streams) EXPECT_EQ(peer.stream(stream).code, kUnimplemented);
    watched.ExpectUnharmed("200 calls of an unknown method with half of a message");
  }
  watched.ExpectMemoryGivenBack("200 calls of an unknown method");
}

// The errors of RotateStream that the server has counted.
double RefusedOnStreams(int port) {
  const Exposition page = Scrape(port);
  double refused = 0;
  for (const auto& [sample, value] : page.samples()) {
    const bool counts = absl::StartsWith(sample, "rope_pipelined_requests_total{") &&
                        absl::StrContains(sample, "transport=\"stream\"");
    if (counts) refused += value;
  }
  return refused;
}

TEST(HostileServicesTest, StreamReadsNoMoreWhileItsErrorsAreNotTaken) {
  constexpr int kStreams = 20;
  constexpr int kRequests = 500;
  constexpr int kUntakenMax = 64 + 1;  // one is with gRPC
  WatchedServer watched({.flags = {"--metrics_listen=127.0.0.1:0"}});
  watched.EndBystander();  // its requests count too
  const int port = MetricsPort(watched.server());
  v1::RotateRequest request = UnitRequest(1);
  request.mutable_rope()->set_model(std::string(200, 'x'));
  const std::string refused = request.SerializeAsString();
  Http2Peer peer = watched.NewPeer(/*window=*/0);
  for (int i = 0; i < kStreams && !peer.lost(); ++i) {
    const uint32_t stream = peer.StartCall(Http2Peer::kRotateStream);
    for (int j = 1; j <= kRequests; ++j) {
      const std::string message =
          proto::StreamPrefix(static_cast<uint64_t>(j), static_cast<int64_t>(refused.size())) +
          refused;
      const int64_t sent =
          peer.SendPart(stream, message, message.size(), /*last=*/false, milliseconds(20));
      if (sent < static_cast<int64_t>(message.size())) break;  // the server reads no more
    }
  }
  peer.Await([&] { return RefusedOnStreams(port) >= kStreams * kUntakenMax; }, seconds(10));
  peer.Await([] { return false; }, milliseconds(300));
  EXPECT_LE(RefusedOnStreams(port), kStreams * kUntakenMax);
  watched.ExpectUnharmed("errors that are not taken");
}

}  // namespace
}  // namespace rope::testing
