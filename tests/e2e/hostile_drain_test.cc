// A drain must end in time, whatever the clients do: unread answers, unfinished messages, work for
// a minute.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/wire/stream_message.h"
#include "tests/support/hostile_requests.h"
#include "tests/support/http2_peer.h"
#include "tests/support/metrics_page.h"
#include "tests/support/test_server.h"

namespace rope::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int64_t kAnswerBytes = int64_t{8} << 20;
constexpr seconds kSoon{3};  // unread answers delay a drain by about a second
constexpr milliseconds kAtOnce{1500};
constexpr int kHeavyRequests = 6;

// A connection with an answer on `path` that it does not read.
std::unique_ptr<Http2Peer> HoldAnswer(TestServer& server, std::string_view path) {
  auto peer = std::make_unique<Http2Peer>(ConnectTcp(server.address()), /*window=*/0);
  std::string request = SmallRequestForLargeAnswer(kAnswerBytes).SerializeAsString();
  if (path == Http2Peer::kRotateStream) {
    request.insert(0, proto::StreamPrefix(1, static_cast<int64_t>(request.size())));
  }
  const uint32_t stream = peer->StartCall(path);
  peer->SendPart(stream, request, request.size(), /*last=*/path == Http2Peer::kRotate);
  EXPECT_TRUE(peer->Await([&] { return peer->stream(stream).held(); }));
  return peer;
}

// Connections that wait for seconds of work. Returns once the server has received all of it.
std::vector<std::unique_ptr<Http2Peer>> KeepBusy(TestServer& server) {
  const std::string request = ScatteredPositions(1'000'000).SerializeAsString();
  std::vector<std::unique_ptr<Http2Peer>> peers;
  peers.reserve(kHeavyRequests);
  for (int i = 0; i < kHeavyRequests; ++i) {
    peers.push_back(std::make_unique<Http2Peer>(ConnectTcp(server.address())));
    const uint32_t stream = peers.back()->StartCall();
    EXPECT_EQ(peers.back()->SendPart(stream, request, request.size(), /*last=*/true),
              static_cast<int64_t>(request.size()));
  }
  const auto deadline = std::chrono::steady_clock::now() + seconds(20);
  while (Scrape(MetricsPort(server)).Value("rope_requests_in_flight") < 1 &&
         std::chrono::steady_clock::now() < deadline) {
  }
  return peers;
}

// Sends SIGTERM until the server has ended: of two that are pending one is delivered. Returns its
// status, if it has ended at once.
std::optional<int> Hurry(TestServer& server) {
  const auto deadline = std::chrono::steady_clock::now() + kAtOnce;
  std::optional<int> status;
  do {
    server.process().Signal(SIGTERM);
    status = server.process().WaitFor(milliseconds(100));
  } while (!status.has_value() && std::chrono::steady_clock::now() < deadline);
  return status;
}

TEST(HostileDrainTest, AnswerThatIsNotReadDelaysADrainByASecond) {
  for (const std::string_view path : {Http2Peer::kRotate, Http2Peer::kRotateStream}) {
    TestServer server({"--log_level=error"});
    const auto peer = HoldAnswer(server, path);
    server.process().Signal(SIGTERM);
    EXPECT_EQ(server.process().WaitFor(kSoon), 0) << path;
  }
}

TEST(HostileDrainTest, WhatIsHalfSentDelaysNoDrain) {
  TestServer server({"--log_level=error"});
  std::vector<std::unique_ptr<Http2Peer>> peers(3);
  for (auto& peer : peers) peer = std::make_unique<Http2Peer>(ConnectTcp(server.address()));
  const std::string message(1 << 20, '\0');
  peers[0]->SendPart(peers[0]->StartCall(), message, 1000, /*last=*/false);
  const uint32_t stream = peers[1]->StartCall(Http2Peer::kRotateStream);
  peers[1]->SendPart(stream, message, 1000, /*last=*/false);
  peers[2]->Send(Frame(FrameType::kHeaders, kNoFlags, 1, EncodeHeaders({{":method", "POST"}})));
  ASSERT_TRUE(peers[0]->AwaitPong() && peers[1]->AwaitPong());
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().WaitFor(kSoon), 0);
}

TEST(HostileDrainTest, AnswersToUnknownMethodsThatAreNotReadDelayNoDrain) {
  TestServer server({"--log_level=error", "--metrics_listen=127.0.0.1:0"});
  Http2Peer peer(ConnectTcp(server.address()));
  peer.StopReading();
  const std::string path = "/" + std::string(200, 'x') + "/y";
  for (int i = 0; i < 2000; ++i) peer.StartCall(path);
  constexpr char kUnknown[] = R"(grpc_server_call_started_total{grpc_method="other"})";
  const auto deadline = std::chrono::steady_clock::now() + seconds(20);
  while (Scrape(MetricsPort(server)).Value(kUnknown) < 1 &&
         std::chrono::steady_clock::now() < deadline) {
  }
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().WaitFor(kSoon), 0);
}

TEST(HostileDrainTest, SecondSignalEndsADrainThatWaitsForWork) {
  TestServer server({"--drain_timeout=60s", "--metrics_listen=127.0.0.1:0", "--log_level=error"});
  const auto peers = KeepBusy(server);
  server.process().Signal(SIGTERM);
  ASSERT_EQ(server.process().WaitFor(milliseconds(500)), std::nullopt) << "it drains";
  const std::optional<int> status = Hurry(server);
  ASSERT_TRUE(status.has_value());
  EXPECT_GE(*status, 0) << "no signal killed it";
}

TEST(HostileDrainTest, SecondSignalEndsADrainThatWaitsForAReader) {
  TestServer server({"--drain_timeout=60s", "--log_level=error"});
  const auto unary = HoldAnswer(server, Http2Peer::kRotate);
  const auto stream = HoldAnswer(server, Http2Peer::kRotateStream);
  server.process().Signal(SIGTERM);
  const std::optional<int> first = server.process().WaitFor(milliseconds(200));
  const std::optional<int> status = first.has_value() ? first : Hurry(server);
  ASSERT_TRUE(status.has_value());
  EXPECT_GE(*status, 0) << "no signal killed it";
}

TEST(HostileDrainTest, DrainTimeoutBoundsADrainThatWaitsForWork) {
  TestServer server({"--drain_timeout=1s", "--metrics_listen=127.0.0.1:0", "--log_level=error"});
  const auto peers = KeepBusy(server);
  server.process().Signal(SIGTERM);
  ASSERT_EQ(server.process().WaitFor(milliseconds(500)), std::nullopt) << "it drains";
  const std::optional<int> status = server.process().WaitFor(kSoon);
  ASSERT_TRUE(status.has_value());
  EXPECT_GE(*status, 0) << "no signal killed it";
}

}  // namespace
}  // namespace rope::testing
