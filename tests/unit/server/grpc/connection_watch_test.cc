#include "server/grpc/connection_watch.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/support/fake_clock.h"
#include "tests/unit/server/test_connection.h"

namespace rope::server {
namespace {

using ::rope::testing::FakeClock;
using ::rope::testing::TestConnection;
using CloseReason = ConnectionWatch::CloseReason;

constexpr absl::Duration kStep = absl::Milliseconds(20);
constexpr absl::Duration kHandshake = absl::Seconds(10);
constexpr absl::Duration kIdle = absl::Minutes(1);

class ConnectionWatchTest : public ::testing::Test {
 protected:
  ConnectionWatchTest() {
    Look();
    Look();  // after a step of known length
  }

  // A look after a step in which the poll thread used `used`, in calls of gRPC that returned.
  bool Look(absl::Duration used = kStep) {
    use_.steps += 2;
    return LookInside(used);
  }
  // The same in the call that it was inside before.
  bool LookInside(absl::Duration used = kStep) {
    clock_.Advance(kStep);
    use_.used += used;
    return watch_.CloseWasters(clock_.Now());
  }
  // Looks for idle connections, each second of `time`.
  void PassIdly(absl::Duration time) {
    for (absl::Duration passed; passed < time; passed += absl::Seconds(1)) {
      clock_.Advance(absl::Seconds(1));
      watch_.CloseIdle(clock_.Now());
    }
  }
  int64_t Closed(CloseReason reason) const { return watch_.closed()[static_cast<size_t>(reason)]; }

  FakeClock clock_;
  CallWatch::Use use_ = {.used = absl::ZeroDuration(), .steps = 1};
  Connections connections_{{.all = 64, .owner = 64}};
  int with_memory_ = -1;  // the descriptor of a connection
  ConnectionWatch watch_{connections_,
                         {.handshake_timeout = kHandshake,
                          .idle_timeout = kIdle,
                          .uses = [this] { return std::vector<CallWatch::Use>{use_}; },
                          .has_memory = [this](int fd) { return fd == with_memory_; }}};
  TestConnection tcp_{connections_, "ip:loopback", TestConnection::Transport::kTcp};
  TestConnection other_{connections_, "ip:192.0.2.7", TestConnection::Transport::kTcp};
  TestConnection unix_{connections_, "uid:1"};
};

TEST_F(ConnectionWatchTest, SaysWhetherThePollThreadsWereBusy) {
  EXPECT_TRUE(Look(kStep));
  EXPECT_FALSE(Look(absl::Microseconds(10)));
}

TEST_F(ConnectionWatchTest, ClosesAConnectionThatCancelsMostOfItsCalls) {
  for (int64_t i = 0; i <= ConnectionWatch::kLostCallsMax; ++i) {
    unix_.account()->BeginCall();
    unix_.account()->LoseCall();
    for (int j = 0; j < 3; ++j) tcp_.account()->BeginCall();
    tcp_.account()->LoseCall();
  }
  Look();
  EXPECT_TRUE(unix_.IsClosed());
  EXPECT_FALSE(tcp_.IsClosed()) << "a proxy, whose clients cancel some of their calls";
  EXPECT_EQ(Closed(CloseReason::kLostCalls), 1);
}

TEST_F(ConnectionWatchTest, ConnectionsOfAnOwnerLoseCallsTogether) {
  TestConnection second(connections_, "uid:1");
  Look();
  Look();
  for (int64_t i = 0; i <= ConnectionWatch::kLostCallsMax / 2; ++i) {
    for (const TestConnection* const connection : {&unix_, &second, &tcp_}) {
      connection->account()->BeginCall();
      connection->account()->LoseCall();
    }
  }
  Look();
  EXPECT_TRUE(unix_.IsClosed());
  EXPECT_TRUE(second.IsClosed());
  EXPECT_FALSE(tcp_.IsClosed());
}

TEST_F(ConnectionWatchTest, CountsOverASecond) {
  for (int second = 0; second < 3; ++second) {
    for (int64_t i = 0; i < ConnectionWatch::kUnknownCancelsMax; ++i) {
      unix_.account()->CountUnknownCancel();
    }
    for (absl::Duration step; step < absl::Seconds(1); step += kStep) Look();
  }
  EXPECT_FALSE(unix_.IsClosed());
  for (int64_t i = 0; i <= ConnectionWatch::kUnknownCancelsMax; ++i) {
    unix_.account()->CountUnknownCancel();
    for (int j = 0; j < 3; ++j) tcp_.account()->CountMessage(9);
    tcp_.account()->CountUnknownCancel();
  }
  Look();
  EXPECT_TRUE(unix_.IsClosed());
  EXPECT_FALSE(tcp_.IsClosed()) << "some of its cancels meet their answer";
  EXPECT_EQ(Closed(CloseReason::kUnknownCancels), 1);
}

// gRPC reads ahead of the server, so bytes without a call may be the message of one that waits.
TEST_F(ConnectionWatchTest, ClosesAConnectionThatBringsHeadersWithoutEnd) {
  TestConnection calling(connections_, "ip:192.0.2.8", TestConnection::Transport::kTcp);
  TestConnection late(connections_, "ip:192.0.2.9", TestConnection::Transport::kTcp);
  TestConnection ending(connections_, "ip:192.0.2.10", TestConnection::Transport::kTcp);
  Look();
  Look();
  other_.account()->OpenStream();
  calling.account()->BeginCall();
  const auto send_much = [&](std::vector<TestConnection*> connections) {
    for (TestConnection* const each : connections) each->Send(ConnectionWatch::kHeaderBytesMax + 1);
  };
  send_much({&tcp_, &other_, &calling, &late, &ending});
  Look();
  late.account()->BeginCall();
  send_much({&tcp_, &other_, &calling, &late});
  Look();
  EXPECT_FALSE(tcp_.IsClosed()) << "its call may wait";
  for (absl::Duration used; used < ConnectionWatch::kHeaderTime; used += kStep) Look();
  EXPECT_TRUE(tcp_.IsClosed());
  EXPECT_FALSE(other_.IsClosed()) << "the bytes may be of its stream";
  EXPECT_FALSE(calling.IsClosed()) << "the bytes may be of a call that was cancelled";
  EXPECT_FALSE(late.IsClosed()) << "its call came a little later";
  EXPECT_FALSE(ending.IsClosed()) << "no more came";
  EXPECT_EQ(Closed(CloseReason::kHeaders), 1);
}

TEST_F(ConnectionWatchTest, ClosesTheConnectionThatKeepsAPollThreadInGrpc) {
  Look();
  other_.Send(100);
  tcp_.Send(20'000);
  LookInside();
  EXPECT_TRUE(tcp_.IsClosed());
  EXPECT_FALSE(other_.IsClosed());
  EXPECT_EQ(Closed(CloseReason::kStall), 1);
  LookInside();
  EXPECT_FALSE(other_.IsClosed()) << "it has brought nothing since";
}

TEST_F(ConnectionWatchTest, AnOwnerThatStallsTwiceInASecondLosesTheConnectionsThatWait) {
  constexpr size_t kWaiting = ConnectionWatch::kWaitingBytesMax + 1;
  const auto with_unread = [this](const std::string& owner, size_t bytes) {
    auto made =
        std::make_unique<TestConnection>(connections_, owner, TestConnection::Transport::kTcp);
    made->SendUnread(bytes);
    return made;
  };
  const std::string owner = "ip:loopback";
  const auto waits = with_unread(owner, kWaiting);
  const auto brings_little = with_unread(owner, kWaiting - 1);
  const auto has_sent_a_message = with_unread(owner, kWaiting);
  has_sent_a_message->account()->BeginCall();
  has_sent_a_message->account()->CountMessage(100);
  const auto of_another = with_unread("ip:192.0.2.7", kWaiting);
  for (const absl::Duration pause : {kStep, absl::Seconds(1), absl::Milliseconds(500)}) {
    EXPECT_FALSE(waits->IsClosed()) << "one stall in a second";
    TestConnection stalls(connections_, owner, TestConnection::Transport::kTcp);
    clock_.Advance(pause);
    Look();
    stalls.Send(20'000);
    LookInside();
    EXPECT_TRUE(stalls.IsClosed());
  }
  EXPECT_TRUE(waits->IsClosed());
  for (const auto& connection : {&brings_little, &has_sent_a_message, &of_another}) {
    EXPECT_FALSE((*connection)->IsClosed());
  }
}

TEST_F(ConnectionWatchTest, AThreadWhoseCallsAreAGuessIsHeldAgainstWastersOnly) {
  use_.is_guess = true;
  tcp_.account()->BeginCall();
  tcp_.account()->CountMessage(100);
  Look();
  tcp_.Send(100'000);
  other_.Send(100'000);
  for (int i = 0; i < 4; ++i) LookInside();
  EXPECT_FALSE(other_.IsClosed()) << "its first call may be about to be seen";
  LookInside();
  EXPECT_TRUE(other_.IsClosed());
  for (int i = 0; i < 9; ++i) LookInside();
  EXPECT_FALSE(tcp_.IsClosed());
}

TEST_F(ConnectionWatchTest, CallsThatReturnAndPayloadAreNoStall) {
  tcp_.Send(20'000);
  Look();
  LookInside(kStep - absl::Milliseconds(1));
  EXPECT_FALSE(tcp_.IsClosed());
  Look();
  other_.Send(4 * limits::kMiB);
  tcp_.Send(20'000);
  tcp_.account()->CountMessage(19'900);
  LookInside();
  EXPECT_FALSE(other_.IsClosed()) << "it brings much for the time";
  EXPECT_FALSE(tcp_.IsClosed()) << "its message is complete";
}

TEST_F(ConnectionWatchTest, BytesOfAMessageUnderWayAreBlamedLaterIfNoOthersCanBe) {
  tcp_.account()->BeginRead();
  Look();
  tcp_.Send(200'000);
  other_.Send(20'000);
  LookInside();
  EXPECT_FALSE(tcp_.IsClosed());
  EXPECT_TRUE(other_.IsClosed());
  tcp_.Send(200'000);
  for (int i = 0; i < 9; ++i) LookInside();
  EXPECT_FALSE(tcp_.IsClosed());
  LookInside();
  EXPECT_TRUE(tcp_.IsClosed());
}

TEST_F(ConnectionWatchTest, ConnectionThatHasSentAMessageIsBlamedLater) {
  for (TestConnection* const connection : {&tcp_, &other_}) {
    for (int i = 0; i < 4; ++i) connection->account()->BeginCall();
    connection->account()->CountMessage(100);
  }
  for (int i = 0; i < 3; ++i) other_.account()->LoseCall();
  Look();
  tcp_.Send(20'000);
  other_.Send(20'000);
  LookInside();
  EXPECT_FALSE(tcp_.IsClosed()) << "its next call may wait";
  EXPECT_TRUE(other_.IsClosed()) << "most of its calls were cancelled";
  tcp_.Send(60'000);
  for (int i = 0; i < 9; ++i) LookInside();
  EXPECT_FALSE(tcp_.IsClosed());
  LookInside();
  EXPECT_TRUE(tcp_.IsClosed());
}

TEST_F(ConnectionWatchTest, ClosesTheOwnerThatTakesTheFewestReplies) {
  tcp_.account()->OweReply(300);
  other_.account()->OweReply(200);
  unix_.account()->OweReply(1000);
  watch_.CloseIdle(clock_.Now());
  clock_.Advance(ConnectionWatch::kUntaken / 2);
  unix_.account()->OweReply(limits::kMiB);
  unix_.account()->PayReply(limits::kMiB, /*taken=*/true);
  other_.account()->OweReply(limits::kMiB);
  other_.account()->PayReply(limits::kMiB, /*taken=*/false);
  watch_.CloseIdle(clock_.Now());
  clock_.Advance(ConnectionWatch::kUntaken / 2);
  watch_.CloseUntaken(clock_.Now());
  EXPECT_TRUE(tcp_.IsClosed());
  EXPECT_FALSE(other_.IsClosed()) << "another owner owes more";
  EXPECT_FALSE(unix_.IsClosed()) << "it has taken a reply meanwhile";
  EXPECT_EQ(Closed(CloseReason::kUntakenReplies), 1);
}

TEST_F(ConnectionWatchTest, LooksAgainSoonWhereAReplyIsNotTaken) {
  watch_.CloseIdle(clock_.Now());
  EXPECT_EQ(watch_.NextLook(), kHandshake / 4);
  unix_.account()->OweReply(1);
  watch_.CloseIdle(clock_.Now());
  EXPECT_EQ(watch_.NextLook(), absl::Seconds(1));
  unix_.account()->PayReply(1, /*taken=*/true);
  watch_.CloseIdle(clock_.Now());
  EXPECT_EQ(watch_.NextLook(), kHandshake / 4);
}

TEST_F(ConnectionWatchTest, ClosesAConnectionWithoutAFirstCall) {
  tcp_.account()->BeginCall();
  with_memory_ = other_.account()->fd();
  PassIdly(kHandshake);
  EXPECT_FALSE(unix_.IsClosed()) << "it was first seen a second later";
  PassIdly(absl::Seconds(1));
  EXPECT_TRUE(unix_.IsClosed());
  EXPECT_FALSE(tcp_.IsClosed()) << "its call is under way";
  EXPECT_FALSE(other_.IsClosed()) << "it has shared memory";
  EXPECT_EQ(Closed(CloseReason::kNoCall), 1);
}

TEST_F(ConnectionWatchTest, TellsClientsWhyInAFrameOfHttp2) {
  const auto frame = [](const std::string& last_stream_and_code, const std::string& reason) {
    const std::string payload =
        last_stream_and_code + "rope_server closed the connection: " + reason;
    return std::string({0, 0, static_cast<char>(payload.size()), 7, 0, 0, 0, 0, 0}) + payload;
  };
  const std::string no_error = {0x7f, '\xff', '\xff', '\xff', 0, 0, 0, 0};
  const std::string enhance_your_calm = {0x7f, '\xff', '\xff', '\xff', 0, 0, 0, 11};
  other_.account()->BeginCall();
  for (int64_t i = 0; i <= ConnectionWatch::kUnknownCancelsMax; ++i) {
    tcp_.account()->CountUnknownCancel();
    other_.account()->CountUnknownCancel();
  }
  Look();
  EXPECT_TRUE(other_.IsClosed());
  EXPECT_EQ(other_.received(), "") << "gRPC may be writing to its call";
  EXPECT_TRUE(tcp_.IsClosed());
  EXPECT_EQ(tcp_.received(), frame(enhance_your_calm, "unknown_cancels"));
  PassIdly(kHandshake + absl::Seconds(1));
  EXPECT_TRUE(unix_.IsClosed());
  EXPECT_EQ(unix_.received(), frame(no_error, "no_call"));
}

TEST_F(ConnectionWatchTest, ClosesAConnectionThatIsIdle) {
  for (TestConnection* const connection : {&tcp_, &other_, &unix_}) {
    connection->account()->BeginCall();
    connection->account()->EndCall();
  }
  with_memory_ = other_.account()->fd();
  PassIdly(kIdle);
  unix_.account()->BeginCall();
  unix_.account()->EndCall();
  PassIdly(absl::Seconds(1));
  EXPECT_TRUE(tcp_.IsClosed());
  EXPECT_FALSE(unix_.IsClosed()) << "it has made a call";
  EXPECT_FALSE(other_.IsClosed()) << "it has shared memory";
  EXPECT_EQ(Closed(CloseReason::kIdle), 1);
}

}  // namespace
}  // namespace rope::server
