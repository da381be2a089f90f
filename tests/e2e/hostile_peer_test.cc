// Clients that hold the server's memory without end: messages that are announced and not finished,
// answers that are not read. The connections write HTTP/2 frames by hand.
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "proto/wire/stream_message.h"
#include "tests/support/hostile_requests.h"
#include "tests/support/http2_peer.h"
#include "tests/support/matchers.h"
#include "tests/support/region_client.h"
#include "tests/support/unread_replies.h"
#include "tests/support/watched_server.h"

namespace rope::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Stream = Http2Peer::Stream;

constexpr int kConnections = 16;
constexpr size_t kSentBytes = 60 * kMiB;  // of 64 MiB
constexpr int kDeadlineExceeded = grpc::StatusCode::DEADLINE_EXCEEDED;
constexpr int kResourceExhausted = grpc::StatusCode::RESOURCE_EXHAUSTED;
constexpr uint32_t kWindowBytes = 0x40000000;
constexpr int64_t kAnswerBytes = 32 * kMiB;
constexpr int kCallsOfEach = 20;

// A request of slightly less than 64 MiB.
const std::string& LargeMessage() {
  static const std::string message = [] {
    v1::RotateRequest request = UnitRequest(1);
    v1::Array& array = *request.mutable_tensors(0)->mutable_array();
    array.clear_numbers();
    array.set_raw(std::string(64 * kMiB - 1024, '\0'));
    return request.SerializeAsString();
  }();
  return message;
}

// Expects trailers with one of the codes, or an end without trailers.
void ExpectEndedWith(const Stream& stream, const ::testing::Matcher<int>& codes) {
  EXPECT_TRUE(stream.ended());
  if (stream.end == Stream::End::kTrailers) {
    EXPECT_THAT(stream.code, codes) << stream.message;
  }
}

// Runs `attack` on many connections at once.
void AttackFromManyConnections(const WatchedServer& watched, int connections, uint32_t window,
                               const std::function<void(Http2Peer&)>& attack) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<size_t>(connections));
  for (int i = 0; i < connections; ++i) {
    threads.emplace_back([&] {
      Http2Peer peer = watched.NewPeer(window);
      attack(peer);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(HalfSentMessageTest, ReadThatDoesNotFinishEndsWithDeadlineExceeded) {
  WatchedServer watched({.flags = {"--receive_timeout=1s"}});
  Http2Peer silent = watched.NewPeer();
  const uint32_t stream = silent.StartCall();
  EXPECT_EQ(silent.SendPart(stream, LargeMessage(), 1000, /*last=*/false), 1000);
  // Another client sends a byte now and then.
  Http2Peer trickling = watched.NewPeer();
  const uint32_t trickle = trickling.StartCall();
  trickling.SendPart(trickle, LargeMessage(), 1000, /*last=*/false);
  for (int i = 0; i < 100 && !trickling.AwaitEnd(trickle, milliseconds(100)); ++i) {
    trickling.Send(Frame(FrameType::kData, kNoFlags, trickle, "x"));
  }
  EXPECT_TRUE(silent.AwaitEnd(stream));
  ExpectEndedWith(silent.stream(stream), kDeadlineExceeded);
  ExpectEndedWith(trickling.stream(trickle), kDeadlineExceeded);
  // Both connections can still be used.
  const std::string unit = UnitRequest(1).SerializeAsString();
  for (Http2Peer* const peer : {&silent, &trickling}) {
    const uint32_t next = peer->Call(unit);
    EXPECT_TRUE(peer->AwaitEnd(next));
    EXPECT_EQ(peer->stream(next).code, grpc::StatusCode::OK);
  }
  watched.ExpectUnharmed("a read that does not finish");
}

TEST(HalfSentMessageTest, SixteenConnectionsThatStopAt60MiBAreBoundedAndEnded) {
  WatchedServer watched({.flags = {"--receive_timeout=2s"}});
  std::vector<std::unique_ptr<Http2Peer>> peers;
  std::vector<std::thread> threads;
  for (int i = 0; i < kConnections; ++i) {
    Http2Peer& peer = *peers.emplace_back(std::make_unique<Http2Peer>(watched.NewPeer()));
    threads.emplace_back([&peer] {
      const uint32_t stream = peer.StartCall();
      peer.SendPart(stream, LargeMessage(), kSentBytes, /*last=*/false, seconds(3));
      EXPECT_TRUE(peer.AwaitEnd(stream, seconds(15)));
      if (!peer.lost()) {
        ExpectEndedWith(peer.stream(stream), AnyOf(kDeadlineExceeded, kResourceExhausted));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  watched.ExpectUnharmed("60 of 64 MiB from 16 connections");
  peers.clear();  // gRPC keeps some MiB of a busy connection for its next message
  watched.ExpectMemoryGivenBack("60 of 64 MiB from 16 connections, closed");
}

TEST(HalfSentMessageTest, SixteenCallsOfOneConnectionAreBoundedAndEnded) {
  WatchedServer watched({.flags = {"--receive_timeout=2s"}});
  Http2Peer peer = watched.NewPeer();
  std::vector<uint32_t> streams;
  for (int i = 0; i < kConnections && !peer.lost(); ++i) {
    streams.push_back(peer.StartCall());
    peer.SendPart(streams.back(), LargeMessage(), kSentBytes, /*last=*/false, milliseconds(300));
  }
  peer.Await(
      [&] {
        return std::all_of(streams.begin(), streams.end(),
                           [&](uint32_t stream) { return peer.IsOver(stream); });
      },
      seconds(15));
  for (const uint32_t stream : streams) {
    if (!peer.lost()) {
      ExpectEndedWith(peer.stream(stream), AnyOf(kDeadlineExceeded, kResourceExhausted));
    }
  }
  watched.ExpectUnharmed("60 of 64 MiB in 16 calls of a connection");
  watched.ExpectMemoryGivenBack("60 of 64 MiB in 16 calls of a connection, which is still open");
}

TEST(HalfSentMessageTest, SixteenStreamsThatStopAt60MiBAreBounded) {
  WatchedServer watched;
  AttackFromManyConnections(watched, kConnections, kDefaultWindow, [](Http2Peer& peer) {
    const uint32_t stream = peer.StartCall(Http2Peer::kRotateStream);
    peer.SendPart(stream, LargeMessage(), kSentBytes, /*last=*/false, seconds(2));
    peer.AwaitEnd(stream, seconds(2));
  });
  watched.ExpectUnharmed("60 of 64 MiB on 16 streams");
  watched.ExpectMemoryGivenBack("60 of 64 MiB on 16 streams");
}

// Starts `count` rotations with answers of `answer_bytes`, and does not read them.
void RotateWithoutReading(Http2Peer& peer, int count, int64_t answer_bytes) {
  CallWithoutReading(peer, Http2Peer::kRotate,
                     SmallRequestForLargeAnswer(answer_bytes).SerializeAsString(), count);
}

TEST(UnreadAnswerTest, EightyAnswersOf32MiBCountUntilTheyAreTaken) {
  constexpr int kCalls = 80;
  WatchedServer watched;
  {
    Http2Peer peer = watched.NewPeer(/*window=*/0);
    RotateWithoutReading(peer, kCalls, kAnswerBytes);
    ASSERT_FALSE(peer.lost());
    const UnreadReplies calls = CountUnread(peer);
    std::printf("measured: %d answers of 32 MiB held, %d calls refused, %d of them with a delay\n",
                calls.held, calls.refused, calls.refused_with_pushback);
    EXPECT_EQ(calls.held + calls.refused, kCalls);
    EXPECT_EQ(calls.refused, calls.refused_with_pushback);
    EXPECT_GE(calls.held, 1);
    EXPECT_LE(calls.held * kAnswerBytes, watched.memory_bytes() / 2);

    // After one of them is read, there is room for another one.
    uint32_t first = 0;
    for (const auto& [id, stream] : peer.streams()) {
      if (first == 0 && stream.held()) first = id;
    }
    peer.GrantWindow(0, kWindowBytes);
    peer.GrantWindow(first, kWindowBytes);
    EXPECT_TRUE(peer.AwaitEnd(first));
    EXPECT_EQ(peer.stream(first).code, grpc::StatusCode::OK);
    EXPECT_GT(peer.stream(first).answer_bytes, kAnswerBytes);
    for (int i = 0; i < 100 && CountUnread(peer).held < calls.held; ++i) {
      RotateWithoutReading(peer, 1, kAnswerBytes);
    }
    EXPECT_EQ(CountUnread(peer).held, calls.held);
    watched.ExpectUnharmed("80 unread answers of 32 MiB");
  }
  watched.ExpectMemoryGivenBack("80 unread answers of 32 MiB, the connection closed");
}

TEST(ManyConnectionsTest, OneOwnerLeavesPlacesForOthersAndIsTold) {
  constexpr size_t kOfOneOwner = 20;
  WatchedServer watched({.flags = {"--max_connections=40"}});
  const auto unix_stub = watched.StubOfAnotherOwner();
  std::vector<std::unique_ptr<Http2Peer>> peers;
  while (peers.size() < 3 * kOfOneOwner) {
    peers.push_back(std::make_unique<Http2Peer>(watched.NewPeer()));
  }
  size_t served = 0;
  for (const auto& peer : peers) served += peer->AwaitPong() ? 1 : 0;
  EXPECT_GT(served, 0U);
  EXPECT_LE(served, kOfOneOwner);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(10));
  v1::RotateResponse response;
  const grpc::Status refused =
      watched.server().NewStub()->Rotate(&context, UnitRequest(1), &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE) << refused.error_message();
  EXPECT_TRUE(Serves(*unix_stub)) << "another owner has its own places";
  peers.clear();
  const auto free_again = std::chrono::steady_clock::now() + seconds(10);
  bool served_again = false;
  while (!served_again && std::chrono::steady_clock::now() < free_again) {
    served_again = Serves(*watched.server().NewStub());
  }
  EXPECT_TRUE(served_again);
  watched.ExpectUnharmed("connections beyond the bound");
}

TEST(UnreadAnswerTest, ConnectionsTogetherStayWithinTheBudget) {
  constexpr int kPeers = 8;
  WatchedServer watched;
  watched.EndBystander();  // the attackers may use all memory together
  AttackFromManyConnections(watched, kPeers, /*window=*/0, [](Http2Peer& peer) {
    RotateWithoutReading(peer, kCallsOfEach, kAnswerBytes);
    EXPECT_FALSE(peer.lost());
    const UnreadReplies calls = CountUnread(peer);
    EXPECT_EQ(calls.held + calls.refused + calls.cancelled, kCallsOfEach);
  });
  watched.ExpectMemoryGivenBack("8 x 20 unread answers of 32 MiB, the connections closed");
  watched.ExpectUnharmed("8 x 20 unread answers of 32 MiB");
}

TEST(UnreadAnswerTest, StreamsThatAreNeverReadStayWithinTheBudget) {
  constexpr int kStreams = 30;
  constexpr int kRequests = 24;
  WatchedServer watched;
  const std::string request = SmallRequestForLargeAnswer(8 * kMiB).SerializeAsString();
  {
    Http2Peer peer = watched.NewPeer(/*window=*/0);
    for (int i = 0; i < kStreams && !peer.lost(); ++i) {
      const uint32_t stream = peer.StartCall(Http2Peer::kRotateStream);
      for (int j = 0; j < kRequests && !peer.IsOver(stream); ++j) {
        const std::string message = proto::StreamPrefix(static_cast<uint64_t>(j) + 1,
                                                        static_cast<int64_t>(request.size())) +
                                    request;
        peer.SendPart(stream, message, message.size(), /*last=*/false, seconds(1));
      }
    }
    peer.Await([] { return false; }, seconds(3));
    watched.ExpectUnharmed("30 streams that are never read");
  }
  watched.ExpectMemoryGivenBack("30 streams that are never read, the connection closed");
}

TEST(UnreadAnswerTest, OneSessionTakesHalfAtMostAndOthersAreAnswered) {
  constexpr int kCalls = 20;
  const Sample sample = {.tokens = 4096, .heads = 8};
  ASSERT_EQ(sample.bytes(), kMiB);
  const v1::RotateRequest request = sample.Inline();
  WatchedServer watched;
  Http2Peer peer = watched.NewPeer(/*window=*/0);
  RotateWithoutReading(peer, 40, kAnswerBytes);
  EXPECT_GE(CountUnread(peer).refused, 1) << "it holds all that it can";
  const auto stub = watched.server().NewStub();
  int answered = 0;
  v1::RotateResponse response;
  for (int i = 0; i < kCalls; ++i) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(10));
    const std::string answer = Text(stub->Rotate(&context, request, &response));
    EXPECT_EQ(answer, "OK");
    if (answer == "OK") ++answered;
  }
  ASSERT_EQ(answered, kCalls);
  const std::string& raw = response.tensors(0).array().raw();
  ASSERT_EQ(raw.size(), sample.bytes());
  std::vector<float> values(static_cast<size_t>(sample.elements()));
  std::memcpy(values.data(), raw.data(), raw.size());
  EXPECT_LT(sample.Error(values.data()), 2e-6);
  watched.ExpectUnharmed("one session holds all that it can");
}

// Sends requests on new streams until one is refused. The first answer of each stream is small.
void StreamWithoutReading(Http2Peer& peer, int streams, int requests, int64_t answer_bytes) {
  const auto send = [&](uint32_t stream, uint64_t sequence, int64_t bytes) {
    const std::string request = SmallRequestForLargeAnswer(bytes).SerializeAsString();
    const std::string message =
        proto::StreamPrefix(sequence, static_cast<int64_t>(request.size())) + request;
    peer.SendPart(stream, message, message.size(), /*last=*/false, seconds(1));
  };
  for (int i = 0; i < streams && !peer.lost(); ++i) {
    const uint32_t stream = peer.StartCall(Http2Peer::kRotateStream);
    send(stream, 1, 256);
    peer.Await([&] { return peer.stream(stream).began; }, seconds(1));
    for (int j = 0; j < requests; ++j) send(stream, static_cast<uint64_t>(j) + 2, answer_bytes);
  }
  peer.Await([] { return false; }, seconds(1));
}

// `hold` makes a connection hold as many replies as it may. A third client must be answered.
void ExpectNotLockedOut(const std::function<void(Http2Peer&)>& hold) {
  const v1::RotateRequest request = Sample{.tokens = 4096, .heads = 8}.Inline();
  WatchedServer watched;
  watched.EndBystander();  // its calls are refused too
  Http2Peer one = watched.NewPeer(/*window=*/0);
  Http2Peer two = watched.NewPeer(/*window=*/0);
  for (Http2Peer* const peer : {&one, &two}) hold(*peer);
  const auto stub = watched.server().NewStub();
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds_since = [begin] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  int refused = 0;
  std::string answer;
  do {
    grpc::ClientContext context;
    v1::RotateResponse response;
    answer = Text(stub->Rotate(&context, request, &response));
    if (answer != "OK") ++refused;
  } while (answer != "OK" && seconds_since() < 60);
  EXPECT_EQ(answer, "OK");
  int cancelled = 0;  // the server may have begun while they took their parts
  for (Http2Peer* const peer : {&one, &two}) {
    peer->Await([] { return false; }, std::chrono::milliseconds(100));
    cancelled += CountUnread(*peer).cancelled;
  }
  EXPECT_GE(refused + cancelled, 1) << "the two connections hold all";
  std::printf("measured: a third client is answered after %.1f s, %d calls refused\n",
              seconds_since(), refused);
}

TEST(UnreadAnswerTest, TwoConnectionsThatHoldAllDoNotLockOthersOut) {
  ExpectNotLockedOut([](Http2Peer& peer) {
    for (const int64_t bytes : {kAnswerBytes, 4 * kMiB, kMiB / 2}) {
      RotateWithoutReading(peer, 12, bytes);  // until a half is full
    }
  });
}

TEST(UnreadAnswerTest, LargeAnswersBehindASmallOneDoNotLockOthersOut) {
  ExpectNotLockedOut([](Http2Peer& peer) {
    for (const int64_t bytes : {kAnswerBytes, 4 * kMiB, kMiB / 2}) {
      StreamWithoutReading(peer, /*streams=*/8, /*requests=*/4, bytes);
    }
  });
}

}  // namespace
}  // namespace rope::testing
