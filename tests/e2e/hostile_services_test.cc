// Clients that make health and reflection keep memory for each stream, and clients that do not read
// their errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "grpc/health/v1/health.pb.h"
#include "proto/wire/stream_message.h"
#include "tests/support/hostile_requests.h"
#include "tests/support/http2_peer.h"
#include "tests/support/metrics_page.h"
#include "tests/support/watched_server.h"

namespace rope::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kResourceExhausted = grpc::StatusCode::RESOURCE_EXHAUSTED;
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
