// Messages that are never sent to their end, each of another connection. They fill what the server
// has for messages that are being read. Uploads and idle streams of others must live.
#include <grpcpp/channel.h>
#include <gtest/gtest.h>

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

#include "tests/support/closed_loop.h"
#include "tests/support/hostile_requests.h"
#include "tests/support/http2_peer.h"
#include "tests/support/rotate_stream.h"
#include "tests/support/test_server.h"
#include "tests/support/watched_server.h"

namespace rope::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

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

  // Uploads until `answers` have come, beside half messages that began before.
  CallTally UploadMeanwhile(Then then, int64_t answers) {
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
      const auto caller = std::make_shared<StubCaller>(channel_, /*waits=*/false);
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
  // Of another owner than the half messages.
  const std::shared_ptr<grpc::Channel> channel_ = NewChannelTo("unix:" + watched_.path());
};

TEST_F(HostileUploadsTest, FewUploadsAreRefusedBesideMessagesThatStayAndIdleStreamsLive) {
  const auto stub = v1::RopeService::NewStub(channel_);
  std::deque<IdleStream> streams;
  while (streams.size() < kStreams) streams.emplace_back(*stub);
  const CallTally tally = UploadMeanwhile(Then::kHolds, 400);
  EXPECT_LT(tally[CallOutcome::kRefused], tally[CallOutcome::kAnswered] / 10);
  for (IdleStream& stream : streams) EXPECT_TRUE(stream.Answers());
}

// Loopback fills the server's memory again in milliseconds, so that many may be refused.
TEST_F(HostileUploadsTest, UploadsBesideMessagesThatBeginAgainAreAnsweredOrTold) {
  UploadMeanwhile(Then::kBeginsAgain, 60);
}

}  // namespace
}  // namespace rope::testing
