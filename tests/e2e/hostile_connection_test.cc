// Attacks that cost time and memory before the server sees a call: reset streams, headers without
// end, cancels. Whatever a connection does, other clients must be answered soon.
// They are measured from processes of their own, once as the attacker's owner and once as another.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/support/hostile_requests.h"
#include "tests/support/http2_peer.h"
#include "tests/support/observer.h"
#include "tests/support/watched_server.h"

namespace rope::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kAttackSeconds = 2;
// Bounds for a machine that runs other tests beside these: alone, the figures are 0.1 to 1.2 s.
// Without accounts of connections, calls waited for 2 to 10 s.
constexpr double kSlowestMs = 4000;
constexpr seconds kNewClientWithin{4};

enum class Kind {
  kResetCalls,
  kResetWholeCalls,
  kLiteralWithoutEnd,
  kIntegerWithoutEnd,
  kFieldsWithoutEnd,
  kManyPaths,
  kUnknownCancels,
};

constexpr const char* kKindNames[] = {"ResetCalls",        "ResetWholeCalls",  "LiteralWithoutEnd",
                                      "IntegerWithoutEnd", "FieldsWithoutEnd", "ManyPaths",
                                      "UnknownCancels"};

std::string CallHeaders(std::string_view path) {
  return EncodeHeaders({{":method", "POST"},
                        {":scheme", "http"},
                        {":path", std::string(path)},
                        {":authority", "localhost"},
                        {"content-type", "application/grpc"},
                        {"te", "trailers"}});
}

// One connection that attacks, and connects again at once when it was closed.
class Attacker {
 public:
  Attacker(const WatchedServer& watched, Kind kind) : watched_(watched), kind_(kind) {}

  int connections() const { return connections_; }

  // Sends some more, as far as the server reads it at once.
  void Step() {
    if (!peer_.has_value() || peer_->lost()) {
      peer_.emplace(watched_.NewPeer());
      ++connections_;
      next_stream_ = 1;
      peer_->Send(Begin(), milliseconds(10));
    }
    peer_->Await([] { return true; }, milliseconds(0));  // reads
    if (kind_ == Kind::kUnknownCancels) {
      peer_->SendData(next_stream_, cancels_, /*last=*/false, milliseconds(1));
    } else if (peer_->Send("", milliseconds(1))) {
      peer_->Send(More(), milliseconds(1));
    }
  }

 private:
  static constexpr int kCallsAtOnce = 500;

  // What the connection sends first.
  std::string Begin() {
    const auto open = [](const std::string& block) {
      return Frame(FrameType::kHeaders, kNoFlags, 1, block);
    };
    switch (kind_) {
      case Kind::kLiteralWithoutEnd:  // a value of 2^28 bytes
        return open(std::string("\0\1x\x7f\x81\xff\xff\x7f", 8));
      case Kind::kIntegerWithoutEnd:  // the length of a name
        return open(std::string("\0\x7f", 2));
      case Kind::kFieldsWithoutEnd:
        return open(EncodeHeaders({{":method", "POST"}}));
      case Kind::kUnknownCancels:
        next_stream_ = peer_->StartCall(Http2Peer::kRotateStream);
        return "";
      default:
        return "";
    }
  }
  std::string More() {
    const auto more = [](const std::string& block) {
      return Frame(FrameType::kContinuation, kNoFlags, 1, block);
    };
    switch (kind_) {
      case Kind::kLiteralWithoutEnd:
        return more(std::string(16'000, 'v'));
      case Kind::kIntegerWithoutEnd:
        return more(std::string(16'000, '\x80'));
      case Kind::kFieldsWithoutEnd:
        return more(fields_);
      default:
        break;
    }
    std::string frames;
    for (int i = 0; i < (kind_ == Kind::kManyPaths ? 1 : kCallsAtOnce); ++i, next_stream_ += 2) {
      frames += Frame(FrameType::kHeaders, kEndHeaders, next_stream_,
                      kind_ == Kind::kManyPaths ? paths_ : headers_);
      if (kind_ == Kind::kResetWholeCalls) {
        frames += Frame(FrameType::kData, kEndStream, next_stream_, unit_);
      }
      frames += Frame(FrameType::kResetStream, kNoFlags, next_stream_, BigEndian32(8));
    }
    return frames;
  }

  static std::string Repeated(const std::string& text, int count) {
    std::string all;
    for (int i = 0; i < count; ++i) all += text;
    return all;
  }
  static std::string Prefixed(const std::string& message) {
    return GrpcPrefix(static_cast<uint32_t>(message.size())) + message;
  }
  static std::string Cancel() {
    v1::RotateStreamRequest request;
    request.set_sequence(7);
    request.mutable_cancel();
    return Prefixed(request.SerializeAsString());
  }

  const WatchedServer& watched_;
  const Kind kind_;
  const std::string headers_ = CallHeaders(Http2Peer::kRotate);
  const std::string paths_ = Repeated(EncodeHeaders({{":path", "/a"}}), 300) + headers_;
  const std::string fields_ = Repeated(EncodeHeaders({{"a", "1"}}), 2000);
  const std::string unit_ = Prefixed(UnitRequest(1).SerializeAsString());
  const std::string cancels_ = Repeated(Cancel(), 1000);
  std::optional<Http2Peer> peer_;
  uint32_t next_stream_ = 1;
  int connections_ = 0;
};

// Two clients that behave well: of the attacker's owner, and of another one.
class Observers {
 public:
  Observers(WatchedServer& watched, int duration)
      : own_(watched.server().address(), duration), other_("unix:" + watched.path(), duration) {}

  void Expect(const std::string& what) {
    for (Observer* const observer : {&own_, &other_}) {
      const Observer::Counts seen = observer->Await();
      std::printf("measured: %s: %s owner: %ld answered, %ld failed, slowest %.1f ms\n",
                  what.c_str(), observer == &own_ ? "the attacker's" : "another", seen.answered,
                  seen.failed, seen.slowest_ms);
      EXPECT_EQ(seen.failed, 0) << what;
      EXPECT_GT(seen.answered, 0) << what;
      EXPECT_LT(seen.slowest_ms, kSlowestMs) << what;
    }
  }

 private:
  Observer own_;
  Observer other_;
};

class HostileConnectionTest : public ::testing::TestWithParam<std::tuple<Kind, int>> {};

TEST_P(HostileConnectionTest, OthersAreAnsweredSoon) {
  const auto [kind, connections] = GetParam();
  WatchedServer watched;
  std::vector<std::unique_ptr<Attacker>> attackers;
  for (int i = 0; i < connections; ++i) {
    attackers.push_back(std::make_unique<Attacker>(watched, kind));
  }
  Observers observers(watched, kAttackSeconds + 1);
  const auto end = std::chrono::steady_clock::now() + seconds(kAttackSeconds);
  while (std::chrono::steady_clock::now() < end) {
    for (const auto& attacker : attackers) attacker->Step();
  }
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(Serves(*watched.server().NewStub()));
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(took, kNewClientWithin) << "a new client";
  int connected = 0;
  for (const auto& attacker : attackers) connected += attacker->connections();
  attackers.clear();
  const std::string what = std::string(kKindNames[static_cast<size_t>(kind)]) + ", " +
                           std::to_string(connected) + " connections";
  std::printf("measured: %s: a new client is answered after %.1f ms\n", what.c_str(),
              std::chrono::duration<double, std::milli>(took).count());
  observers.Expect(what);
  watched.ExpectUnharmed(what);
}

INSTANTIATE_TEST_SUITE_P(
    Attacks, HostileConnectionTest,
    ::testing::Combine(::testing::Values(Kind::kResetCalls, Kind::kResetWholeCalls,
                                         Kind::kLiteralWithoutEnd, Kind::kIntegerWithoutEnd,
                                         Kind::kFieldsWithoutEnd, Kind::kManyPaths,
                                         Kind::kUnknownCancels),
                       ::testing::Values(1, 16)),
    [](const auto& param) {
      return std::string(kKindNames[static_cast<size_t>(std::get<0>(param.param))]) +
             (std::get<1>(param.param) == 1 ? "OfOne" : "OfSixteen");
    });

}  // namespace
}  // namespace rope::testing
