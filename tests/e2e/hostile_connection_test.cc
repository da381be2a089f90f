// Attacks that cost time and memory before the server sees a call: reset streams, headers without
// end. Behind Envoy, other clients must be answered soon. Beside cancels, which the server sees,
// they must be without it, too.
// They are measured from processes of their own, once as the attacker's owner and once as another.
#include <arpa/inet.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "tests/support/hostile_requests.h"
#include "tests/support/http2_peer.h"
#include "tests/support/memory_limit.h"
#include "tests/support/observer.h"
#include "tests/support/process_memory.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/watched_server.h"

namespace rope::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kAttackSeconds = 2;
// Bounds for a machine that runs other tests beside these: alone, the figures are 0.1 to 0.7 s.
// Without Envoy, calls wait for 2 to 10 s beside what the server does not see.
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
  Attacker(std::string address, Kind kind) : address_(std::move(address)), kind_(kind) {}

  int connections() const { return connections_; }
  bool is_connected() const { return peer_.has_value() && !peer_->lost(); }

  // Sends some more, as far as the server reads it at once.
  void Step() {
    if (!peer_.has_value() || peer_->lost()) {
      peer_.emplace(ConnectTcp(address_), kDefaultWindow);
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

  const std::string address_;
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

// Envoy with deploy/envoy/envoy.yaml in front of a server's Unix socket.
class EnvoyProxy {
 public:
  EnvoyProxy(const std::string& program, const std::string& path)
      : address_("127.0.0.1:" + std::to_string(FreePort())),
        process_({program, "--disable-hot-restart", "--log-level", "error", "--concurrency", "2",
                  "-c", WriteConfig(path)}) {
    const auto stub =
        v1::RopeService::NewStub(grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
    const auto end = std::chrono::steady_clock::now() + seconds(20);
    while (!is_ready_ && std::chrono::steady_clock::now() < end) {
      grpc::ClientContext context;
      context.set_wait_for_ready(true);
      context.set_deadline(std::chrono::system_clock::now() + seconds(5));
      v1::RotateResponse response;
      is_ready_ = stub->Rotate(&context, UnitRequest(1), &response).ok();
    }
  }

  const std::string& address() const { return address_; }
  bool is_ready() const { return is_ready_; }

 private:
  static int FreePort() {
    const proto::FileDescriptor any(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(any.get(), generic, length), 0);
    EXPECT_EQ(getsockname(any.get(), generic, &length), 0);
    return ntohs(address.sin_port);
  }
  // Returns the path of the config for this server and address.
  std::string WriteConfig(const std::string& path) const {
    std::ifstream file(ROPE_SOURCE_DIR "/deploy/envoy/envoy.yaml");
    std::string text{std::istreambuf_iterator<char>(file), {}};
    const std::string port = address_.substr(address_.rfind(':') + 1);
    const std::pair<std::string, std::string> changes[] = {
        {"{address: 0.0.0.0, port_value: 50052}", "{address: 127.0.0.1, port_value: " + port + "}"},
        {"{path: /run/rope/rope.sock}", "{path: " + path + "}"}};
    for (const auto& [was, is] : changes) {
      EXPECT_EQ(absl::StrReplaceAll({{was, is}}, &text), 1) << was;
    }
    const std::string name = TemporaryFolder() + "/envoy.yaml";
    std::ofstream(name) << text;
    return name;
  }

  const std::string address_;
  const Process process_;
  bool is_ready_ = false;
};

// Two clients that behave well: of the attacker's owner, at the same address, and of another one.
class Observers {
 public:
  Observers(WatchedServer& watched, const std::string& address, int duration)
      : own_(address, duration), other_("unix:" + watched.path(), duration) {}

  void Expect(const std::string& what) {
    for (Observer* const observer : {&own_, &other_}) {
      const Observer::Counts seen = observer->Await();
      std::printf("measured: %s: %s owner: %ld answered, %ld failed, p99 %.1f, slowest %.1f ms\n",
                  what.c_str(), observer == &own_ ? "the attacker's" : "another", seen.answered,
                  seen.failed, seen.p99_ms, seen.slowest_ms);
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

// `door`: where they connect, of the server or of its proxy.
void ExpectOthersAnswered(WatchedServer& watched, const std::string& address,
                          const std::string& door, Kind kind, int connections) {
  std::vector<std::unique_ptr<Attacker>> attackers;
  for (int i = 0; i < connections; ++i) {
    attackers.push_back(std::make_unique<Attacker>(address, kind));
  }
  Observers observers(watched, address, kAttackSeconds + 1);
  const auto end = std::chrono::steady_clock::now() + seconds(kAttackSeconds);
  while (std::chrono::steady_clock::now() < end) {
    for (const auto& attacker : attackers) attacker->Step();
  }
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(Serves(
      *v1::RopeService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))));
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(took, kNewClientWithin) << "a new client";
  int connected = 0;
  for (const auto& attacker : attackers) connected += attacker->connections();
  attackers.clear();
  const std::string what = std::string(kKindNames[static_cast<size_t>(kind)]) + door + ", " +
                           std::to_string(connected) + " connections";
  std::printf("measured: %s: a new client is answered after %.1f ms\n", what.c_str(),
              std::chrono::duration<double, std::milli>(took).count());
  observers.Expect(what);
  watched.ExpectUnharmed(what);
}

TEST(UnknownCancelsTest, OthersAreAnsweredSoon) {
  for (const int connections : {1, 16}) {
    WatchedServer watched;
    ExpectOthersAnswered(watched, watched.server().address(), "", Kind::kUnknownCancels,
                         connections);
  }
}

TEST_P(HostileConnectionTest, OthersAreAnsweredSoonBehindEnvoy) {
  const char* const program = std::getenv("ROPE_ENVOY");
  if (program == nullptr || *program == 0) GTEST_SKIP() << "envoy is not here (ROPE_ENVOY)";
  const auto [kind, connections] = GetParam();
  WatchedServer watched({.flags = {"--trusted_proxy=uid:" + std::to_string(geteuid())}});
  const EnvoyProxy envoy(program, watched.path());
  ASSERT_TRUE(envoy.is_ready());
  ExpectOthersAnswered(watched, envoy.address(), " behind Envoy", kind, connections);
}

// In the memory of a small container, with the server's own defaults. The last attack goes on while
// the server drains.
TEST(HostileDefaultsTest, AServerInOneGibibyteOutlivesCancelsAndEndsInTime) {
  const MemoryLimit container(1024 * kMiB);
  TestServer server({"--drain_timeout=2s", "--log_level=error"}, Process::Errors::kOurs,
                    &container);
  std::vector<std::unique_ptr<Attacker>> attackers;
  for (const Kind kind : {Kind::kResetCalls, Kind::kUnknownCancels, Kind::kResetWholeCalls}) {
    attackers.clear();
    for (int i = 0; i < 16; ++i) {
      attackers.push_back(std::make_unique<Attacker>(server.address(), kind));
    }
    const auto end = std::chrono::steady_clock::now() + seconds(1);
    while (std::chrono::steady_clock::now() < end) {
      for (const auto& attacker : attackers) attacker->Step();
    }
    bool serves = false;  // once it has read what was sent, behind which a client may give up
    const auto patience = std::chrono::steady_clock::now() + seconds(60);
    while (!serves && std::chrono::steady_clock::now() < patience) {
      serves = Serves(*server.NewStub());
    }
    EXPECT_TRUE(serves) << kKindNames[static_cast<size_t>(kind)];
  }
  std::printf("measured: at the end %.0f MiB are resident\n",
              static_cast<double>(ResidentBytes(server.process().pid())) / kMiB);
  server.process().Signal(SIGTERM);
  std::optional<int> status;
  const auto begin = std::chrono::steady_clock::now();
  const auto end = begin + seconds(6);
  while (!status.has_value() && std::chrono::steady_clock::now() < end) {
    std::erase_if(attackers, [](const auto& attacker) { return !attacker->is_connected(); });
    for (const auto& attacker : attackers) attacker->Step();
    status = server.process().WaitFor(milliseconds(0));
  }
  ASSERT_TRUE(status.has_value()) << "it ends";
  std::printf("measured: it ended after %.1f s\n",
              std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  EXPECT_GE(*status, 0) << "no signal killed it";
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
