#include "server/clients/connection_watch.h"

#include <gtest/gtest.h>

#include <string>

#include "server/limits.h"
#include "tests/support/test_clients.h"
#include "tests/unit/server/test_connection.h"

namespace rope::server {
namespace {

using ::rope::testing::FakeClock;
using ::rope::testing::TestClients;
using ::rope::testing::TestConnection;

constexpr absl::Duration kStep = absl::Milliseconds(100);
constexpr absl::Duration kHandshake = absl::Seconds(10);
constexpr absl::Duration kIdle = absl::Minutes(1);

class ConnectionWatchTest : public ::testing::Test {
 protected:
  ConnectionWatchTest() { Look(); }

  void Look() {
    clock_.Advance(kStep);
    watch_.Look(clock_.Now());
  }
  // Looks each second of `time`.
  void PassIdly(absl::Duration time) {
    for (absl::Duration passed; passed < time; passed += absl::Seconds(1)) {
      clock_.Advance(absl::Seconds(1));
      watch_.Look(clock_.Now());
    }
  }
  int64_t Closed(CloseReason reason) const {
    return connections_.closed()[static_cast<size_t>(reason)].second;
  }

  TestClients clients_;
  FakeClock& clock_ = clients_.clock;
  Connections& connections_ = clients_.connections;
  uint64_t with_memory_ = 0;  // the id of a connection; 0: of none
  bool needs_memory_ = false;
  ConnectionWatch watch_{
      connections_,
      {.handshake_timeout = kHandshake,
       .idle_timeout = kIdle,
       .has_memory =
           [this](const Connection& connection) { return connection.id() == with_memory_; },
       .needs_memory = [this] { return needs_memory_; }}};
  TestConnection tcp_{connections_, "ip:loopback", TestConnection::Transport::kTcp};
  TestConnection other_{connections_, "ip:192.0.2.7", TestConnection::Transport::kTcp};
  TestConnection unix_{connections_, "uid:1"};
};

TEST_F(ConnectionWatchTest, LooksTenTimesASecondWhileThereAreCalls) {
  EXPECT_EQ(watch_.Look(clock_.Now()), absl::Seconds(1));
  unix_.connection()->BeginCall();
  EXPECT_EQ(watch_.Look(clock_.Now()), absl::Milliseconds(100));
  unix_.connection()->EndCall();
  EXPECT_EQ(watch_.Look(clock_.Now()), absl::Seconds(1));
}

TEST_F(ConnectionWatchTest, ClosesAConnectionThatCancelsMostOfItsCalls) {
  for (int64_t i = 0; i <= ConnectionWatch::kLostCallsMax; ++i) {
    unix_.connection()->BeginCall();
    unix_.connection()->LoseCall();
    for (int j = 0; j < 3; ++j) tcp_.connection()->BeginCall();
    tcp_.connection()->LoseCall();
  }
  Look();
  EXPECT_TRUE(unix_.IsClosed());
  EXPECT_FALSE(tcp_.IsClosed()) << "a proxy, whose clients cancel some of their calls";
  EXPECT_EQ(Closed(CloseReason::kLostCalls), 1);
}

TEST_F(ConnectionWatchTest, ConnectionsOfAnOwnerLoseCallsTogether) {
  TestConnection second(connections_, "uid:1");
  Look();
  for (int64_t i = 0; i <= ConnectionWatch::kLostCallsMax / 2; ++i) {
    for (const TestConnection* const connection : {&unix_, &second, &tcp_}) {
      connection->connection()->BeginCall();
      connection->connection()->LoseCall();
    }
  }
  Look();
  EXPECT_TRUE(unix_.IsClosed());
  EXPECT_TRUE(second.IsClosed());
  EXPECT_FALSE(tcp_.IsClosed());
}

TEST_F(ConnectionWatchTest, CountsOverASecond) {
  for (int second = 0; second < 3; ++second) {
    for (int64_t i = 0; i < ConnectionWatch::kLostCallsMax; ++i) {
      unix_.connection()->CountUnknownCancel();
    }
    for (absl::Duration step; step < absl::Seconds(1); step += kStep) Look();
  }
  EXPECT_FALSE(unix_.IsClosed());
  for (int64_t i = 0; i <= ConnectionWatch::kLostCallsMax; ++i) {
    unix_.connection()->CountUnknownCancel();
    for (int j = 0; j < 3; ++j) tcp_.connection()->CountMessage(9);
    tcp_.connection()->CountUnknownCancel();
  }
  Look();
  EXPECT_TRUE(unix_.IsClosed());
  EXPECT_FALSE(tcp_.IsClosed()) << "some of its cancels meet their answer";
  EXPECT_EQ(Closed(CloseReason::kLostCalls), 1);
}

TEST_F(ConnectionWatchTest, ClosesTheOwnerThatTakesTheFewestReplies) {
  tcp_.connection()->OweReply(300);
  other_.connection()->OweReply(200);
  unix_.connection()->OweReply(1000);
  Look();
  clock_.Advance(ConnectionWatch::kUntaken / 2);
  unix_.connection()->OweReply(limits::kMiB);
  unix_.connection()->PayReply(limits::kMiB, /*taken=*/true);
  other_.connection()->OweReply(limits::kMiB);
  other_.connection()->PayReply(limits::kMiB, /*taken=*/false);
  Look();
  clock_.Advance(ConnectionWatch::kUntaken / 2);
  Look();
  EXPECT_FALSE(tcp_.IsClosed()) << "the memory is not needed";
  needs_memory_ = true;
  Look();
  EXPECT_TRUE(tcp_.IsClosed());
  EXPECT_FALSE(other_.IsClosed()) << "another owner owes more";
  EXPECT_FALSE(unix_.IsClosed()) << "it has taken a reply meanwhile";
  EXPECT_EQ(Closed(CloseReason::kUntakenReplies), 1);
}

TEST_F(ConnectionWatchTest, ClosesAConnectionWithoutAFirstCall) {
  tcp_.connection()->BeginCall();
  with_memory_ = other_.connection()->id();
  PassIdly(kHandshake - absl::Seconds(1));
  EXPECT_FALSE(unix_.IsClosed());
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
  other_.connection()->BeginCall();
  for (int64_t i = 0; i <= ConnectionWatch::kLostCallsMax; ++i) {
    tcp_.connection()->CountUnknownCancel();
    other_.connection()->CountUnknownCancel();
  }
  Look();
  EXPECT_TRUE(other_.IsClosed());
  EXPECT_EQ(other_.received(), "") << "gRPC may be writing to its call";
  EXPECT_TRUE(tcp_.IsClosed());
  EXPECT_EQ(tcp_.received(), frame(enhance_your_calm, "lost_calls"));
  PassIdly(kHandshake + absl::Seconds(1));
  EXPECT_TRUE(unix_.IsClosed());
  EXPECT_EQ(unix_.received(), frame(no_error, "no_call"));
}

TEST_F(ConnectionWatchTest, ClosesAConnectionThatIsIdle) {
  for (TestConnection* const connection : {&tcp_, &other_, &unix_}) {
    connection->connection()->BeginCall();
    connection->connection()->EndCall();
  }
  with_memory_ = other_.connection()->id();
  PassIdly(kIdle);
  unix_.connection()->BeginCall();
  unix_.connection()->EndCall();
  PassIdly(absl::Seconds(1));
  EXPECT_TRUE(tcp_.IsClosed());
  EXPECT_FALSE(unix_.IsClosed()) << "it has made a call";
  EXPECT_FALSE(other_.IsClosed()) << "it has shared memory";
  EXPECT_EQ(Closed(CloseReason::kIdle), 1);
}

}  // namespace
}  // namespace rope::server
