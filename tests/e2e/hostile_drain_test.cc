// What is half sent or not read: memory and drains.
#include <grpcpp/channel.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "proto/wire/stream_message.h"
#include "tests/support/closed_loop.h"
#include "tests/support/hostile_requests.h"
#include "tests/support/http2_peer.h"
#include "tests/support/metrics_page.h"
#include "tests/support/rotate_stream.h"
#include "tests/support/test_server.h"
#include "tests/support/watched_server.h"

namespace rope::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// Messages that are never sent to their end, each of another connection. They fill what the server
// has for messages that are being read. Uploads and idle streams of others must live.

constexpr size_t kHalves = 40;
constexpr uint32_t kMessageBytes = 64 << 20;
constexpr size_t kSentBytes = 20 << 20;
constexpr int kUploads = 4;  // at a time
constexpr int kStreams = 4;
constexpr seconds kPatience{90};
constexpr Sample kLarge = {.tokens = 1024, .heads = 512, .start = 0};  // 16 MiB

enum class Then { kHolds, kBeginsAgain };

// A connection with one message, of which it sends a part. `then`: whether it begins another one
// when the server has ended the call or the connection.
class HalfMessage {
 public:
  HalfMessage(std::string address, std::string_view bytes, Then then)
      : address_(std::move(address)), bytes_(bytes), then_(then) {}

  int calls() const { return calls_; }

  // Sends some more, as far as the server reads it at once.
  void Step() {
    constexpr size_t kStep = 256 << 10;
    if (!peer_.has_value() || (then_ == Then::kBeginsAgain && peer_->IsOver(stream_))) Begin();
    peer_->Await([] { return true; }, milliseconds(0));  // reads
    if (sent_ == bytes_.size() || peer_->IsOver(stream_)) return;
    sent_ += static_cast<size_t>(peer_->SendData(stream_, bytes_.substr(sent_, kStep),
                                                 /*last=*/false, milliseconds(0)));
  }

 private:
  void Begin() {
    if (!peer_.has_value() || peer_->lost()) peer_.emplace(ConnectTcp(address_));
    stream_ = peer_->StartCall();
    sent_ = 0;
    ++calls_;
  }

  const std::string address_;
  const std::string_view bytes_;
  const Then then_;
  std::optional<Http2Peer> peer_;
  uint32_t stream_ = 0;
  size_t sent_ = 0;
  int calls_ = 0;
};

// An open stream on which one request was answered.
class IdleStream {
 public:
  explicit IdleStream(v1::RopeService::Stub& stub) {
    context_.set_deadline(std::chrono::system_clock::now() + 2 * kPatience);
    stream_ = OpenStream(stub, context_);
    EXPECT_TRUE(Answers());
  }
  bool Answers() {
    v1::RotateResponse response;
    return stream_->Write(UnitRequest(1)) && stream_->Read(&response);
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<TestStream> stream_;
};

class HostileUploadsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kMemoryIsMeasured) GTEST_SKIP() << "a sanitizer's memory uses up the server's";
    watched_.EndBystander();  // the server may refuse its calls, too
  }

  // A client of another owner than those of the half messages.
  std::shared_ptr<grpc::Channel> ChannelOfAnother() const {
    return NewChannelTo("unix:" + watched_.path());
  }

  // Uploads until `answers` have come, beside half messages that began before.
  CallTally UploadMeanwhile(Then then, const std::shared_ptr<grpc::Channel>& channel,
                            int64_t answers) {
    const Payload payload(kLarge);
    const std::string bytes = GrpcPrefix(kMessageBytes) + std::string(kSentBytes, '\1');
    std::deque<HalfMessage> halves;
    while (halves.size() < kHalves) halves.emplace_back(watched_.server().address(), bytes, then);
    const auto step = [&halves] {
      for (HalfMessage& half : halves) half.Step();
    };
    const auto begun = steady_clock::now() + seconds(2);
    while (steady_clock::now() < begun) step();
    std::atomic<bool> stop = false;
    std::thread attack([&] {
      while (!stop) step();
    });
    std::vector<ClosedLoop::Client> clients;
    for (int i = 0; i < kUploads; ++i) {
      const auto caller = std::make_shared<StubCaller>(channel, /*waits=*/false);
      clients.emplace_back([caller, &payload] { return caller->Call(payload); });
    }
    ClosedLoop load(std::move(clients));
    EXPECT_TRUE(load.AwaitAnswers(answers, 0, kPatience));
    CallTally tally = load.Stop();
    stop = true;
    attack.join();
    int calls = 0;
    for (const HalfMessage& half : halves) calls += half.calls();
    std::printf("measured: uploads beside %d half messages: %s\n", calls, tally.ToString().c_str());
    for (const auto kind :
         {CallOutcome::kWrong, CallOutcome::kFailed, CallOutcome::kHung, CallOutcome::kOther}) {
      EXPECT_EQ(tally[kind], 0) << tally.first[kind];
    }
    watched_.ExpectUnharmed("half messages");
    return tally;
  }

  WatchedServer watched_;
};

TEST_F(HostileUploadsTest, NoUploadOfAnotherOwnerIsRefusedAndIdleStreamsLive) {
  const auto channel = ChannelOfAnother();
  const auto stub = v1::RopeService::NewStub(channel);
  std::deque<IdleStream> streams;
  while (streams.size() < kStreams) streams.emplace_back(*stub);
  EXPECT_EQ(UploadMeanwhile(Then::kHolds, channel, 400)[CallOutcome::kRefused], 0);
  for (IdleStream& stream : streams) EXPECT_TRUE(stream.Answers());
}

// Loopback fills the server's memory again in milliseconds, so that some may be refused.
TEST_F(HostileUploadsTest, FewUploadsOfAnotherOwnerAreRefusedBesideMessagesThatBeginAgain) {
  const CallTally tally = UploadMeanwhile(Then::kBeginsAgain, ChannelOfAnother(), 60);
  EXPECT_LT(tally[CallOutcome::kRefused], tally[CallOutcome::kAnswered] / 2);
}

TEST_F(HostileUploadsTest, UploadsOfTheSameOwnerAreAnsweredOrTold) {
  UploadMeanwhile(Then::kHolds, watched_.server().NewChannel(), 60);
}

// A drain must end in time, whatever the clients do: unread answers, unfinished messages, work for
// a minute.

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
