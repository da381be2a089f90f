#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <string>
#include <vector>

#include "client/codec/codec.h"
#include "client/transport/channel.h"
#include "client/transport/connector.h"
#include "proto/error.h"
#include "proto/wire/error_details.h"
#include "rope/client.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/client/fake_acceptor.h"

namespace rope::client {
namespace {

TEST(ChannelTest, PathOfATarget) {
  EXPECT_EQ(UnixPathOf("unix:/run/rope.sock"), "/run/rope.sock");
  EXPECT_EQ(UnixPathOf("unix:///run/rope.sock"), "/run/rope.sock");
  EXPECT_EQ(UnixPathOf("unix:rope.sock"), "rope.sock");
  EXPECT_EQ(UnixPathOf("unix-abstract:rope"), std::nullopt);
  EXPECT_EQ(UnixPathOf("127.0.0.1:50051"), std::nullopt);
}

TEST(ChannelTest, PathsWithoutAListenerSayWhy) {
  const auto socket = ConnectSocket("/tmp/rope_test_no_such_socket", std::chrono::seconds(1));
  EXPECT_EQ(socket.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(socket.status().message().find("No such file"), std::string::npos);
  for (const std::string& path : {std::string(), std::string(108, 'x')}) {
    EXPECT_EQ(ConnectSocket(path, std::chrono::seconds(1)).status().code(),
              StatusCode::kInvalidArgument);
  }
}

struct Case {
  std::string written;
  std::string target;
  bool is_of_several = false;
};

TEST(TargetTest, IsReadAsPeopleWriteIt) {
  const Case cases[] = {
      {"host", "host:50051"},
      {"host:1", "host:1"},
      {"[::1]", "[::1]:50051"},
      {"[::1]:1", "[::1]:1"},
      {"http://host:1/", "host:1"},
      {"http://host", "host:50051"},
      {"https://host/", "host:50051"},
      {"unix:/a/b", "unix:/a/b"},
      {"unix:/a,b", "unix:/a,b"},
      {"dns:///host:1", "dns:///host:1", true},
      {"10.0.0.1:1,10.0.0.2", "ipv4:10.0.0.1:1,10.0.0.2:50051", true},
      {"10.0.0.1:1, 10.0.0.2:2", "ipv4:10.0.0.1:1,10.0.0.2:2", true},
      {"[::1],[::2]:1", "ipv6:[::1]:50051,[::2]:1", true},
      {"ipv4:10.0.0.1:1,10.0.0.2:2", "ipv4:10.0.0.1:1,10.0.0.2:2", true},
  };
  for (const Case& one : cases) {
    ASSERT_OK(target, ReadTarget(one.written));
    EXPECT_EQ(*target, one.target);
    EXPECT_EQ(IsOfSeveral(*target), one.is_of_several) << one.written;
  }
}

TEST(TargetTest, OthersAreRefusedByName) {
  const std::pair<std::string, std::string> cases[] = {
      {"", "target: got nothing, want HOST:PORT or unix:PATH"},
      {"http://", "target: got nothing, want HOST:PORT or unix:PATH"},
      {"https://", "target: got nothing, want HOST:PORT or unix:PATH"},
      {"10.0.0.1,host", "target: got host:50051, want IPv4 or IPv6 addresses"},
      {"10.0.0.1:1,[::1]:2", "target: got [::1]:2, want IPv4"},
      {"[::1]:1,10.0.0.1:2", "target: got 10.0.0.1:2, want IPv4"},
      {"10.0.0.1:1,", "target: got :50051, want IPv4"},
      {"10.0.0.1:70000,10.0.0.2:1", "target: got 10.0.0.1:70000, want IPv4"},
      {"10.0.0.1:x,10.0.0.2:1", "target: got 10.0.0.1:x, want IPv4"},
      {"10.0.0.1:1,unix:/a", "target: got unix:/a, want IPv4"},
  };
  for (const auto& [written, error] : cases) {
    EXPECT_THAT(ReadTarget(written),
                StatusIs(StatusCode::kInvalidArgument, ::testing::StartsWith(error)));
  }
}

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int64_t kArenaBytes = 64 << 10;
constexpr int64_t kFloats = 256;
constexpr uint64_t kNextId = 1000;                      // from one id of a region to the next
constexpr int64_t kStagedFloats = kStagedBytesMin / 4;  // as few as are staged

std::string NewPath() {
  return rope::testing::TemporaryFolder() + "/s";
}

// A server that adds 1 to every float of the first tensor, in its memory or in the message.
class ConnectorTest : public ::testing::Test {
 protected:
  ConnectorTest() {
    server_.OnRotate(
        [this](grpc::CallbackServerContext&, const std::string& bytes, std::string& reply) {
          v1::RotateRequest request;
          EXPECT_TRUE(request.ParseFromString(bytes));
          if (!failure_.ok()) return std::exchange(failure_, grpc::Status::OK);
          v1::RotateResponse response;
          grpc::Status status = Add(request, *response.add_tensors()->mutable_array());
          reply = response.SerializeAsString();
          return status;
        });
  }

  grpc::Status Add(const v1::RotateRequest& request, v1::Array& answer) {
    const v1::Array& array = request.tensors(0).array();
    answer.set_dtype(array.dtype());
    *answer.mutable_shape() = array.shape();
    std::vector<float> values(static_cast<size_t>(array.shape(0) * array.shape(1)));
    const size_t bytes = values.size() * sizeof(float);
    const void* input = array.raw().data();
    if (array.has_region()) {
      ++in_region_;
      last_id_ = array.region().region_id();
      last_offset_ = array.region().offset();
      input = acceptor_.At(array.region().region_id(), array.region().offset());
      if (input == nullptr) {
        const v1::Error error = proto::ErrorMessageOf(proto::MakeError(
            proto::Reason::kRegionNotFound, "tensors[0].array.region", "an unknown one", ""));
        return {grpc::StatusCode::NOT_FOUND, error.message(), proto::EncodeStatusDetails(error)};
      }
    }
    std::memcpy(values.data(), input, bytes);
    for (float& value : values) value += 1;
    if (request.output().regions_size() == 0) {
      answer.set_raw(values.data(), bytes);
      return grpc::Status::OK;
    }
    const v1::RegionSpan& span = request.output().regions(0);
    std::memcpy(acceptor_.At(span.region_id(), span.offset()), values.data(), bytes);
    return grpc::Status::OK;
  }

  Result<Client> Connect(std::vector<Transport> transports = ConnectOptions().transports,
                         milliseconds timeout = seconds(5)) const {
    return Client::Connect(
        acceptor_.target(),
        {.timeout = timeout, .arena_bytes = kArenaBytes, .transports = std::move(transports)});
  }
  // A connection without an arena.
  Client ConnectStaging(int64_t staged_bytes) const {
    return Client::Connect(acceptor_.target(), {.staged_bytes = staged_bytes}).value();
  }
  static Slot FloatSlot(const Client& client) {
    Slot slot = client.arena().Allocate(kFloats * sizeof(float)).value();
    std::fill_n(static_cast<float*>(slot.data()), kFloats, 0.0f);
    return slot;
  }
  static float First(const Slot& slot) { return *static_cast<const float*>(slot.data()); }

  // The server gives each region other ids, and is always done with it.
  void AnswerFences() {
    server_.OnRegisterRegion(
        [this](const v1::RegisterRegionRequest& request, v1::RegisterRegionResponse& response) {
          response.set_region_id(request.region_id() + kNextId);
          acceptor_.AddId(request.region_id(), response.region_id());
          return grpc::Status::OK;
        });
    server_.OnUnregisterRegion([this](const v1::UnregisterRegionRequest& request) {
      if (request.wait()) ++fences_;
      return grpc::Status::OK;
    });
  }

  // The server's handlers use these, so they are destroyed after it.
  std::atomic<int> in_region_ = 0;
  std::atomic<int> fences_ = 0;
  std::atomic<uint64_t> last_id_ = 0;  // of a tensor in a region
  std::atomic<uint64_t> last_offset_ = 0;
  grpc::Status failure_;  // of the next call
  FakeServer server_;
  FakeAcceptor acceptor_{server_, NewPath()};
};

TEST_F(ConnectorTest, TensorsInTheArenaAreNamedAndNotSent) {
  const Client client = Connect().value();
  EXPECT_EQ(client.transport().transport, Transport::kMemfd);
  EXPECT_EQ(client.transport().reason, "ring: got a server that serves none");
  EXPECT_EQ(client.arena().capacity_bytes(), kArenaBytes);
  const Slot input = FloatSlot(client);
  const Slot output = FloatSlot(client);
  ASSERT_TRUE(client.Rotate(RequestFor(input, output)).ok());
  EXPECT_EQ(First(output), 1);
  EXPECT_EQ(First(input), 0);
  ASSERT_TRUE(client.RotateFuture(RequestFor(output, output)).get().ok());
  EXPECT_EQ(First(output), 2);
  EXPECT_EQ(in_region_, 2);
}

TEST_F(ConnectorTest, OutputAcrossAnInputComesInTheMessage) {
  const Client client = Connect().value();
  const Slot slot = client.arena().Allocate(2 * kFloats * sizeof(float)).value();
  auto* floats = static_cast<float*>(slot.data());
  std::fill_n(floats, 2 * kFloats, 5.0f);
  RotateRequest request = RequestFor(slot, slot);
  request.tensors[0].output = floats + kFloats / 2;
  ASSERT_OK(reply, client.Rotate(request));
  EXPECT_EQ(floats[kFloats / 2 - 1], 5);
  EXPECT_EQ(floats[kFloats / 2], 6);
}

TEST_F(ConnectorTest, ServerThatRefusesMemoryIsUsedInline) {
  acceptor_.SetMood(FakeAcceptor::Mood::kRefuses);
  const Client client = Connect().value();
  EXPECT_EQ(client.transport().transport, Transport::kInline);
  EXPECT_THAT(client.transport().reason, HasSubstr("hello: got FAILED_PRECONDITION"));
  const Slot slot = FloatSlot(client);
  ASSERT_TRUE(client.Rotate(RequestFor(slot, slot)).ok());
  EXPECT_EQ(First(slot), 1);
  EXPECT_EQ(in_region_, 0);
}

TEST_F(ConnectorTest, ServerWithoutTheHelloOrOfAnotherVersionIsUsedInline) {
  for (const auto mood : {FakeAcceptor::Mood::kOld, FakeAcceptor::Mood::kOther}) {
    acceptor_.SetMood(mood);
    const Client client = Connect({Transport::kMemfd, Transport::kInline}).value();
    EXPECT_EQ(client.transport().transport, Transport::kInline);
    const Slot slot = FloatSlot(client);
    ASSERT_TRUE(client.Rotate(RequestFor(slot, slot)).ok());
    EXPECT_EQ(First(slot), 1);
  }
}

TEST_F(ConnectorTest, ServerThatSaysNothingEndsConnectInTime) {
  acceptor_.SetMood(FakeAcceptor::Mood::kSilent);
  const auto begin = std::chrono::steady_clock::now();
  const auto client = Connect({Transport::kMemfd, Transport::kInline}, milliseconds(300));
  EXPECT_FALSE(client.ok());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(20));
}

TEST_F(ConnectorTest, ForcedTransportThatCannotBeHadFailsWithTheReason) {
  acceptor_.SetMood(FakeAcceptor::Mood::kRefuses);
  EXPECT_THAT(Connect({Transport::kMemfd}),
              StatusIs(StatusCode::kFailedPrecondition,
                       HasSubstr("memfd: FAILED_PRECONDITION: hello: got")));
}

TEST_F(ConnectorTest, RingIsTakenWhereTheServerServesIt) {
  EXPECT_EQ(Connect().value().transport().transport, Transport::kMemfd) << "no doorbell came";
  EXPECT_EQ(acceptor_.rings(), 1);
  acceptor_.SetMood(FakeAcceptor::Mood::kRings);
  for (const Client& client :
       {Connect().value(), Connect({Transport::kRing}).value(), ConnectStaging(1 << 20)}) {
    EXPECT_EQ(client.transport().transport, Transport::kRing);
    EXPECT_EQ(client.transport().reason, "");
  }
  EXPECT_EQ(acceptor_.rings(), 4);
}

TEST_F(ConnectorTest, ForcedRingThatTheServerLeavesUnservedFailsWithTheReason) {
  EXPECT_THAT(Connect({Transport::kRing}),
              StatusIs(StatusCode::kFailedPrecondition,
                       HasSubstr("hello: got memory without a ring, want one with it")));
  EXPECT_EQ(acceptor_.rings(), 1);
}

TEST_F(ConnectorTest, ClientThatMayNotUseARingBringsNone) {
  acceptor_.SetMood(FakeAcceptor::Mood::kRings);
  EXPECT_EQ(Connect({Transport::kMemfd}).value().transport().transport, Transport::kMemfd);
  EXPECT_EQ(acceptor_.hellos(), 1);
  EXPECT_EQ(acceptor_.rings(), 0);
}

TEST_F(ConnectorTest, TransportIsThatOfTheConnectionThatWasDialedLast) {
  acceptor_.SetMood(FakeAcceptor::Mood::kRings);
  const Client client = Connect().value();
  const auto transport_of_next = [&](FakeAcceptor::Mood mood) {
    acceptor_.SetMood(mood);
    acceptor_.CloseConnections();
    EXPECT_TRUE(client.Health().ok());
    return client.transport().transport;
  };
  EXPECT_EQ(transport_of_next(FakeAcceptor::Mood::kWelcomes), Transport::kMemfd);
  EXPECT_EQ(transport_of_next(FakeAcceptor::Mood::kRings), Transport::kRing);
}

TEST_F(ConnectorTest, DialOfTheBackgroundThreadDelaysNeitherCancelNorTransport) {
  const Client client = Connect({Transport::kMemfd}).value();
  const Slot input = FloatSlot(client);
  const Slot output = FloatSlot(client);
  acceptor_.SetMood(FakeAcceptor::Mood::kSilent);
  acceptor_.CloseConnections();
  std::promise<Status> ended;
  const Call call = client.RotateAsync(
      RequestFor(input, output), [&ended](const auto& reply) { ended.set_value(reply.status()); });
  acceptor_.AwaitConnection();
  call.Cancel();
  EXPECT_EQ(client.transport().transport, Transport::kMemfd);
  EXPECT_TRUE(acceptor_.IsHeld()) << "the dial is still under way";
  EXPECT_EQ(ended.get_future().get().code(), StatusCode::kCancelled);
}

TEST_F(ConnectorTest, OptionsThatContradictEachOtherAreRefused) {
  const auto code_of = [this](int64_t bytes, std::vector<Transport> transports) {
    return Client::Connect(acceptor_.target(),
                           {.arena_bytes = bytes, .transports = std::move(transports)})
        .status()
        .code();
  };
  EXPECT_EQ(code_of(0, {}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of(4096, {}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of(-1, {Transport::kInline}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_of(int64_t{1} << 62, {Transport::kInline}), StatusCode::kResourceExhausted);
}

TEST_F(ConnectorTest, NegativeSizesAreRefusedByName) {
  Status status = Client::Connect(acceptor_.target(), {.pooled_bytes = -1}).status();
  EXPECT_THAT(status,
              StatusIs(StatusCode::kInvalidArgument, "pooled_bytes: got -1, want 0 or more"));
  status = Client::Connect(acceptor_.target(), {.staged_bytes = -1}).status();
  EXPECT_THAT(status,
              StatusIs(StatusCode::kInvalidArgument, "staged_bytes: got -1, want 0 or more"));
}

TEST_F(ConnectorTest, LostConnectionIsDialedAgainWithTheSameMemory) {
  const Client client = Connect().value();
  const Slot input = FloatSlot(client);
  const Slot output = FloatSlot(client);
  ASSERT_TRUE(client.Rotate(RequestFor(input, output)).ok());
  acceptor_.CloseConnections();
  ASSERT_TRUE(client.Rotate(RequestFor(output, input)).ok());
  EXPECT_EQ(First(input), 2);
  acceptor_.CloseConnections();
  ASSERT_TRUE(client.RotateFuture(RequestFor(input, output)).get().ok());
  EXPECT_EQ(First(output), 3);
  EXPECT_EQ(acceptor_.hellos(), 3);
  EXPECT_EQ(client.transport().transport, Transport::kMemfd);
}

TEST_F(ConnectorTest, InPlaceCallOnALostConnectionIsNotSentAgain) {
  const Client client = Connect().value();
  const Slot slot = FloatSlot(client);
  acceptor_.CloseConnections();
  const auto lost = client.Rotate(RequestFor(slot, slot));
  EXPECT_EQ(lost.status().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(lost.status().detail().may_have_executed);
  EXPECT_EQ(First(slot), 0);
  ASSERT_TRUE(client.Rotate(RequestFor(slot, slot)).ok());
  EXPECT_EQ(First(slot), 1);
  acceptor_.CloseConnections();
  EXPECT_EQ(client.RotateFuture(RequestFor(slot, slot)).get().status().code(),
            StatusCode::kUnavailable);
}

TEST_F(ConnectorTest, InPlaceCallThatTheServerDidNotRunIsSentAgain) {
  const Client client = Connect().value();
  const Slot slot = FloatSlot(client);
  v1::Error error = proto::ErrorMessageOf(absl::UnavailableError("full"));
  error.set_retry_delay_ms(1);
  failure_ = {grpc::StatusCode::UNAVAILABLE, "full", proto::EncodeStatusDetails(error)};
  ASSERT_TRUE(client.Rotate(RequestFor(slot, slot)).ok());
  EXPECT_EQ(First(slot), 1);
  EXPECT_EQ(acceptor_.hellos(), 1);  // and the connection is none that was lost
}

TEST_F(ConnectorTest, CallWaitsForAServerThatComesBack) {
  const Client client = Connect().value();
  const Slot slot = FloatSlot(client);
  acceptor_.Stop();
  EXPECT_EQ(client.Rotate(RequestFor(slot, slot)).status().code(), StatusCode::kUnavailable);
  std::future<Result<RotateReply>> later = client.RotateFuture(RequestFor(slot, slot));
  acceptor_.Listen();
  ASSERT_OK(reply, later.get());
  EXPECT_EQ(First(slot), 1);
}

TEST_F(ConnectorTest, ServerThatComesBackWithoutMemoryIsUsedInline) {
  const Client client = Connect().value();
  const Slot input = FloatSlot(client);
  const Slot output = FloatSlot(client);
  acceptor_.SetMood(FakeAcceptor::Mood::kRefuses);
  acceptor_.CloseConnections();
  ASSERT_OK(reply, client.Rotate(RequestFor(input, output)));
  EXPECT_EQ(First(output), 1);
  EXPECT_EQ(in_region_, 0);
  EXPECT_EQ(client.transport().transport, Transport::kInline);
  EXPECT_THAT(client.transport().reason, HasSubstr("memfd: FAILED_PRECONDITION"));
}

TEST_F(ConnectorTest, FenceSaysOnceThatAConnectionWasLost) {
  AnswerFences();
  const Client client = Connect().value();
  const Slot slot = FloatSlot(client);
  ASSERT_TRUE(client.Fence().ok());
  EXPECT_EQ(fences_, 1);
  acceptor_.CloseConnections();
  EXPECT_EQ(client.Rotate(RequestFor(slot, slot)).status().code(), StatusCode::kUnavailable);
  ASSERT_TRUE(client.Rotate(RequestFor(slot, slot)).ok());  // on the next
  EXPECT_THAT(client.Fence(),
              StatusIs(StatusCode::kUnavailable,
                       HasSubstr("fence: a connection that shared the memory was lost")));
  ASSERT_TRUE(client.Fence().ok());
  EXPECT_EQ(fences_, 2);
}

TEST_F(ConnectorTest, FenceThatFindsTheConnectionLostSaysSo) {
  AnswerFences();
  const Client client = Connect().value();
  const Slot slot = FloatSlot(client);
  acceptor_.CloseConnections();
  EXPECT_EQ(client.Fence().code(), StatusCode::kUnavailable);
  ASSERT_TRUE(client.Rotate(RequestFor(slot, slot)).ok());
  EXPECT_TRUE(client.Fence().ok());
}

TEST_F(ConnectorTest, CallsAfterAFenceNameTheNextId) {
  AnswerFences();
  const Client client = Connect().value();
  const Slot slot = FloatSlot(client);
  ASSERT_TRUE(client.Rotate(RequestFor(slot, slot)).ok());
  const uint64_t before = last_id_;
  ASSERT_TRUE(client.Fence().ok());
  ASSERT_TRUE(client.Rotate(RequestFor(slot, slot)).ok());
  EXPECT_EQ(last_id_, before + kNextId);
}

TEST_F(ConnectorTest, FenceWaitsForCallsInFlight) {
  AnswerFences();
  server_.HangOnRotate();
  const Client client = Connect().value();
  const Slot slot = FloatSlot(client);
  std::promise<void> ended;
  const Call call = client.RotateAsync(RequestFor(slot, slot), [&](const auto& reply) {
    EXPECT_EQ(reply.status().code(), StatusCode::kCancelled);
    EXPECT_EQ(client.Fence().code(), StatusCode::kFailedPrecondition) << "it is the one it awaits";
    ended.set_value();
  });
  EXPECT_EQ(client.Fence({.timeout = milliseconds(200)}).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(fences_, 0);
  call.Cancel();
  ASSERT_TRUE(client.Fence().ok());
  EXPECT_EQ(fences_, 1);
  ended.get_future().wait();
}

TEST_F(ConnectorTest, FenceWhereNoMemoryOfTheProgramIsSharedIsOverAtOnce) {
  ASSERT_TRUE(ConnectStaging(1 << 20).Fence().ok());
  acceptor_.SetMood(FakeAcceptor::Mood::kRefuses);
  ASSERT_TRUE(Connect().value().Fence().ok());
  EXPECT_EQ(fences_, 0);
}

TEST_F(ConnectorTest, FenceOfAServerThatKnowsNoneIsUnimplemented) {
  EXPECT_EQ(Connect().value().Fence().code(), StatusCode::kUnimplemented);
}

TEST_F(ConnectorTest, TensorsElsewhereAreStagedOnEveryKindOfCall) {
  const Client client = ConnectStaging(1 << 20);
  EXPECT_EQ(client.transport().transport, Transport::kMemfd);
  EXPECT_EQ(client.transport().reason, "ring: got a server that serves none");
  EXPECT_EQ(client.arena().capacity_bytes(), 0);
  const std::vector<float> input(kStagedFloats, 1.0f);
  const std::vector<float> expected(kStagedFloats, 2.0f);
  std::vector<float> output(kStagedFloats);

  ASSERT_TRUE(client.Rotate(RequestFor(input, output.data())).ok());
  EXPECT_EQ(output, expected);
  output.assign(kStagedFloats, 0);
  ASSERT_TRUE(client.RotateFuture(RequestFor(input, output.data())).get().ok());
  EXPECT_EQ(output, expected);
  ASSERT_OK(reply, client.Rotate(RequestFor(input, nullptr)));
  EXPECT_EQ(std::memcmp(reply->tensors[0].data, expected.data(), kStagedBytesMin), 0);
  EXPECT_EQ(in_region_, 3);
  EXPECT_EQ(input, std::vector<float>(kStagedFloats, 1.0f));
  EXPECT_EQ(acceptor_.hellos(), 1);
}

TEST_F(ConnectorTest, WhatIsSmallOrFindsNoRoomIsSent) {
  const Client client = ConnectStaging(2 * kStagedBytesMin);
  for (const int64_t floats : {kStagedFloats - 2, 2 * kStagedFloats + 2}) {
    const std::vector<float> input(static_cast<size_t>(floats), 1.0f);
    std::vector<float> output(input.size());
    ASSERT_OK(reply, client.Rotate(RequestFor(input, output.data())));
    EXPECT_EQ(output, std::vector<float>(input.size(), 2.0f));
  }
  EXPECT_EQ(in_region_, 0);
}

TEST_F(ConnectorTest, NothingIsStagedWhereThatIsOffOrForbidden) {
  const std::vector<float> input(kStagedFloats, 1.0f);
  std::vector<float> output(kStagedFloats);
  for (const ConnectOptions& options :
       {ConnectOptions{.staged_bytes = 0}, ConnectOptions{.transports = {Transport::kInline}}}) {
    const Client client = Client::Connect(acceptor_.target(), options).value();
    EXPECT_EQ(client.transport().transport, Transport::kInline);
    EXPECT_THAT(client.transport().reason, HasSubstr("memfd: "));
    ASSERT_TRUE(client.Rotate(RequestFor(input, output.data())).ok());
    EXPECT_EQ(output, std::vector<float>(kStagedFloats, 2.0f));
  }
  EXPECT_EQ(in_region_, 0);
  EXPECT_EQ(acceptor_.hellos(), 0);
}

TEST_F(ConnectorTest, StagingThatTheServerRefusesTravelsInlineUnlessThatIsForbidden) {
  acceptor_.SetMood(FakeAcceptor::Mood::kRefuses);
  const Client client = ConnectStaging(1 << 20);
  EXPECT_EQ(client.transport().transport, Transport::kInline);
  EXPECT_THAT(client.transport().reason, HasSubstr("hello: got FAILED_PRECONDITION"));
  const std::vector<float> input(kStagedFloats, 1.0f);
  std::vector<float> output(kStagedFloats);
  ASSERT_TRUE(client.Rotate(RequestFor(input, output.data())).ok());
  EXPECT_EQ(output, std::vector<float>(kStagedFloats, 2.0f));
  EXPECT_EQ(in_region_, 0);
  EXPECT_THAT(Client::Connect(acceptor_.target(), {.transports = {Transport::kMemfd}}),
              StatusIs(StatusCode::kFailedPrecondition,
                       HasSubstr("memfd: FAILED_PRECONDITION: hello: got")));
}

// The copy may have been turned; what it was made from has not.
TEST_F(ConnectorTest, StagedCallInPlaceIsSentAgainOnANewConnectionWithMemoryOfItsOwn) {
  const Client client = ConnectStaging(1 << 20);
  std::vector<float> values(kStagedFloats, 1.0f);
  for (int call = 1; call <= 2; ++call) {
    acceptor_.CloseConnections();
    ASSERT_OK(reply, call == 1 ? client.Rotate(RequestFor(values, values.data()))
                               : client.RotateFuture(RequestFor(values, values.data())).get());
    EXPECT_EQ(values, std::vector<float>(kStagedFloats, 1.0f + static_cast<float>(call)));
    EXPECT_EQ(acceptor_.hellos(), 1 + call);
  }
  EXPECT_EQ(in_region_, 2);
}

// A server may still be writing where it was told to.
TEST_F(ConnectorTest, MemoryOfACallWithoutTheServersWordIsNotUsedAgain) {
  const Client client = ConnectStaging(4 * kStagedBytesMin);
  const std::vector<float> input(kStagedFloats, 1.0f);
  std::vector<float> output(kStagedFloats);
  const auto offset_of_next = [&] {
    EXPECT_TRUE(client.Rotate(RequestFor(input, output.data())).ok());
    return last_offset_.load();
  };
  EXPECT_EQ(offset_of_next(), 0u);
  EXPECT_EQ(offset_of_next(), 0u);
  // The server's word: nothing is at work.
  failure_ = {grpc::StatusCode::INVALID_ARGUMENT, "bad"};
  EXPECT_FALSE(client.Rotate(RequestFor(input, output.data())).ok());
  EXPECT_EQ(offset_of_next(), 0u);
  for (const uint64_t lost : {1, 2}) {
    failure_ = {grpc::StatusCode::DEADLINE_EXCEEDED, "who knows"};
    EXPECT_EQ(client.Rotate(RequestFor(input, output.data())).status().code(),
              StatusCode::kDeadlineExceeded);
    EXPECT_EQ(offset_of_next(), lost * kStagedBytesMin);
    EXPECT_EQ(acceptor_.hellos(), 1);
  }
  // More than half is lost: the next call goes over a connection with memory of its own.
  failure_ = {grpc::StatusCode::DEADLINE_EXCEEDED, "who knows"};
  EXPECT_FALSE(client.RotateFuture(RequestFor(input, output.data())).get().ok());
  EXPECT_EQ(offset_of_next(), 0u);
  EXPECT_EQ(acceptor_.hellos(), 2);
  EXPECT_EQ(output, std::vector<float>(kStagedFloats, 2.0f));
}

TEST_F(ConnectorTest, MemoryOfWhichHalfIsLostIsUsedOnWhereThereIsNoOther) {
  const Client client = ConnectStaging(2 * kStagedBytesMin);
  const std::vector<float> input(kStagedFloats, 1.0f);
  std::vector<float> output(kStagedFloats);
  acceptor_.StopListening();
  for (int lost = 0; lost < 2; ++lost) {
    failure_ = {grpc::StatusCode::DEADLINE_EXCEEDED, "who knows"};
    EXPECT_FALSE(client.Rotate(RequestFor(input, output.data())).ok());
  }
  ASSERT_OK(reply, client.Rotate(RequestFor(input, output.data())));
  EXPECT_EQ(output, std::vector<float>(kStagedFloats, 2.0f));
  EXPECT_EQ(in_region_, 0);
  acceptor_.Listen();
  ASSERT_TRUE(client.Rotate(RequestFor(input, output.data())).ok());
  EXPECT_EQ(in_region_, 1);
}

}  // namespace
}  // namespace rope::client
