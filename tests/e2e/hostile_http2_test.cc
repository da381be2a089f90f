// Floods and garbage below gRPC. Whatever frames a connection sends, the server must live, hold
// little memory and answer others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <zlib.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/hostile_requests.h"
#include "tests/support/http2_peer.h"
#include "tests/support/observer.h"
#include "tests/support/process_memory.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/unix_socket.h"
#include "tests/support/watched_server.h"

namespace rope::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kStuck{
    1000};  // a server that reads nothing for this long has given up on the connection

class HostileHttp2Test : public ::testing::Test {
 protected:
  void TearDown() override {
    const char* const name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    watched_.ExpectUnharmed(name);
    watched_.ExpectMemoryGivenBack(name);
  }

  // Sends `frame` `count` times, in groups, as long as the server reads them.
  static void Flood(Http2Peer& peer, const std::string& frame, int count) {
    constexpr int kAtOnce = 500;
    std::string frames;
    for (int i = 0; i < kAtOnce; ++i) frames += frame;
    for (int i = 0; i < count; i += kAtOnce) {
      if (!peer.Send(frames, kStuck)) return;
    }
  }

  WatchedServer watched_;
};

TEST_F(HostileHttp2Test, CallsByHandAreAnsweredAndRefusedAsAllAre) {
  Http2Peer peer = watched_.NewPeer();
  const uint32_t unit = peer.Call(UnitRequest(1).SerializeAsString());
  const uint32_t empty = peer.Call("");
  ASSERT_TRUE(peer.AwaitEnd(unit) && peer.AwaitEnd(empty));
  EXPECT_EQ(peer.stream(unit).code, grpc::StatusCode::OK);
  EXPECT_TRUE(peer.stream(unit).began);
  EXPECT_GT(peer.stream(unit).answer_bytes, 16);
  EXPECT_EQ(peer.stream(empty).code, grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(peer.stream(empty).message, ::testing::StartsWith("rope: got nothing"));
  // The server keeps an answer until there is a window for it.
  Http2Peer waiting = watched_.NewPeer(/*window=*/0);
  const uint32_t held = waiting.Call(UnitRequest(1).SerializeAsString());
  EXPECT_TRUE(waiting.Await([&] { return waiting.stream(held).held(); }));
  EXPECT_TRUE(waiting.AwaitPong());
  EXPECT_EQ(waiting.stream(held).answer_bytes, 0);
  EXPECT_TRUE(waiting.stream(held).held());
  waiting.GrantWindow(held, kDefaultWindow);
  EXPECT_TRUE(waiting.AwaitEnd(held));
  EXPECT_EQ(waiting.stream(held).code, grpc::StatusCode::OK);
  EXPECT_GT(waiting.stream(held).answer_bytes, 16);
}

TEST_F(HostileHttp2Test, TwentyThousandPings) {
  const std::string ping = Frame(FrameType::kPing, kNoFlags, 0, "12345678");
  Http2Peer reading = watched_.NewPeer();
  Flood(reading, ping, 20'000);
  Http2Peer deaf = watched_.NewPeer();
  deaf.StopReading();
  Flood(deaf, ping, 20'000);
}

TEST_F(HostileHttp2Test, SettingsWithoutEnd) {
  const Settings values = {{kSettingsInitialWindowSize, 1000}};
  const std::string settings = Frame(FrameType::kSettings, kNoFlags, 0, EncodeSettings(values));
  Http2Peer reading = watched_.NewPeer();
  Flood(reading, settings, 20'000);
  Http2Peer deaf = watched_.NewPeer();
  deaf.StopReading();
  Flood(deaf, settings, 300'000);
}

TEST_F(HostileHttp2Test, FiveThousandStreamsOpenedAndResetAtOnce) {
  Http2Peer peer = watched_.NewPeer();
  for (int i = 0; i < 5000 && !peer.lost(); ++i) peer.Reset(peer.StartCall());
  // The same with whole requests, which have started to run by the time of the reset.
  Http2Peer calling = watched_.NewPeer();
  const std::string request = SmallRequestForLargeAnswer(kMiB).SerializeAsString();
  for (int i = 0; i < 1000 && !calling.lost(); ++i) calling.Reset(calling.Call(request));
}

TEST_F(HostileHttp2Test, AThousandStreamsAtOnce) {
  Http2Peer peer = watched_.NewPeer();
  ASSERT_TRUE(peer.AwaitPong());
  for (int i = 0; i < 1000 && !peer.lost(); ++i) peer.StartCall();
  peer.AwaitPong(kStuck);
}

TEST_F(HostileHttp2Test, HeadersThatNeverEnd) {
  Http2Peer half = watched_.NewPeer();
  half.Send(Frame(FrameType::kHeaders, kNoFlags, 1, EncodeHeaders({{":method", "POST"}})));
  Http2Peer endless = watched_.NewPeer();
  endless.Send(Frame(FrameType::kHeaders, kNoFlags, 1, EncodeHeaders({{":method", "POST"}})));
  std::string block;
  while (block.size() < 16'000) block += EncodeHeaders({{"x-field", std::string(100, 'v')}});
  const std::string frame = Frame(FrameType::kContinuation, kNoFlags, 1, block);
  for (int64_t sent = 0; sent < 64 * kMiB; sent += static_cast<int64_t>(frame.size())) {
    if (!endless.Send(frame, kStuck)) break;
  }
  // One field whose value never ends: a literal of 2^28 bytes.
  Http2Peer one = watched_.NewPeer();
  one.Send(Frame(FrameType::kHeaders, kNoFlags, 1, std::string("\0\1x\x7f\x81\xff\xff\x7f", 8)));
  const std::string value = Frame(FrameType::kContinuation, kNoFlags, 1, std::string(16'000, 'v'));
  for (int64_t sent = 0; sent < 64 * kMiB; sent += static_cast<int64_t>(value.size())) {
    if (!one.Send(value, kStuck)) break;
  }
  watched_.ExpectUnharmed("headers that never end, connections still open");
}

TEST_F(HostileHttp2Test, WindowsOfZeroAndOfOneByte) {
  constexpr int kAnswers = 10;
  const std::string request = SmallRequestForLargeAnswer(kMiB).SerializeAsString();
  const auto settings = [](uint32_t window) {
    const Settings values = {{kSettingsInitialWindowSize, window}};
    return Frame(FrameType::kSettings, kNoFlags, 0, EncodeSettings(values));
  };
  Http2Peer toggling = watched_.NewPeer(/*window=*/0);
  for (int i = 0; i < kAnswers; ++i) toggling.Call(request);
  Flood(toggling, settings(1) + settings(0), 5000);

  Http2Peer sipping = watched_.NewPeer(/*window=*/0);
  const uint32_t stream = sipping.Call(request);
  EXPECT_TRUE(sipping.Await([&] { return sipping.stream(stream).held(); }));
  Flood(sipping, Frame(FrameType::kWindowUpdate, kNoFlags, stream, BigEndian32(1)), 5000);
}

TEST_F(HostileHttp2Test, FramesThatBreakTheProtocol) {
  const std::string ok_headers = EncodeHeaders({{":method", "POST"}, {":path", "/"}});
  const std::vector<std::string> wrong = {
      Frame(FrameType::kData, kNoFlags, 0, "x"),
      Frame(FrameType::kData, kNoFlags, 1, "x"),
      Frame(FrameType::kData, kPadded, 1, "\xff"),
      Frame(FrameType::kHeaders, kEndHeaders, 0, ok_headers),
      Frame(FrameType::kHeaders, kEndHeaders, 2, ok_headers),
      Frame(FrameType::kHeaders, kEndHeaders, 1, ""),
      Frame(FrameType::kHeaders, kEndHeaders | kPadded, 1, "\xff"),
      Frame(FrameType::kHeaders, kEndHeaders | kPriorityFlag, 1, "xx"),
      Frame(FrameType::kHeaders, kEndHeaders, 1, std::string(100, '\xff')),
      Frame(FrameType::kContinuation, kEndHeaders, 1, ok_headers),
      Frame(FrameType::kPriority, kNoFlags, 1, "x"),
      Frame(FrameType::kResetStream, kNoFlags, 1, "x"),
      Frame(FrameType::kResetStream, kNoFlags, 0, BigEndian32(0)),
      Frame(FrameType::kSettings, kNoFlags, 0, "x"),
      Frame(FrameType::kSettings, kAck, 0, "123456"),
      Frame(FrameType::kSettings, kNoFlags, 0,
            EncodeSettings({{kSettingsInitialWindowSize, 0xffffffff}})),
      Frame(FrameType::kSettings, kNoFlags, 0, EncodeSettings({{kSettingsMaxFrameSize, 0}})),
      Frame(FrameType::kPushPromise, kEndHeaders, 1, BigEndian32(2) + ok_headers),
      Frame(FrameType::kPing, kNoFlags, 0, "x"),
      Frame(FrameType::kGoAway, kNoFlags, 0, "x"),
      Frame(FrameType::kWindowUpdate, kNoFlags, 0, BigEndian32(0)),
      Frame(FrameType::kWindowUpdate, kNoFlags, 0, BigEndian32(0x7fffffff)),
      Frame(FrameType::kWindowUpdate, kNoFlags, 1, "x"),
      Frame(static_cast<FrameType>(77), 0xff, 0x7fffffff, "unknown"),
      EncodeFrameHeader({.length = 0xffffff, .type = FrameType::kSettings}),
      EncodeFrameHeader({.length = 0xffffff, .type = FrameType::kData, .stream = 1}),
  };
  for (const std::string& frame : wrong) {
    Http2Peer peer = watched_.NewPeer();
    peer.Send(frame + frame);
    peer.AwaitPong(milliseconds(100));
    // The same after a call has started.
    Http2Peer calling = watched_.NewPeer();
    calling.StartCall();
    calling.Send(frame + frame);
    calling.AwaitPong(milliseconds(100));
  }
}

TEST_F(HostileHttp2Test, MessagesThatAreNotGrpcs) {
  const std::string unit = UnitRequest(1).SerializeAsString();
  const std::string length = BigEndian32(static_cast<uint32_t>(unit.size()));
  const std::vector<std::string> bodies = {
      "",                                                    // no message
      std::string(3, '\0'),                                  // half of a prefix
      std::string(1, '\1') + length + unit,                  // marked as compressed
      std::string(1, '\x7f') + length + unit,                // an unknown flag
      GrpcPrefix(0xffffffff),                                // 4 GiB
      GrpcPrefix(0),                                         // an empty message
      GrpcPrefix(1) + unit,                                  // longer than announced
      std::string(1, '\0') + length + unit + GrpcPrefix(5),  // followed by half of another one
      std::string(1, '\0') + length + unit + std::string(1, '\0') + length + unit,  // two
  };
  for (const std::string& body : bodies) {
    for (const std::string_view path :
         {Http2Peer::kRotate, Http2Peer::kRotateStream, std::string_view("/rope.v1.RopeService/No"),
          std::string_view("")}) {
      Http2Peer peer = watched_.NewPeer();
      const uint32_t stream = peer.StartCall(path);
      peer.Send(Frame(FrameType::kData, kEndStream, stream, body));
      EXPECT_TRUE(peer.AwaitEnd(stream)) << body.size() << " bytes to " << path;
    }
  }
}

// Zeros, compressed to a thousandth. `encoding`: "gzip" or "deflate", as gRPC names them.
std::string ZippedZeros(int64_t bytes, const std::string& encoding) {
  constexpr int kWindowBits = 15;
  constexpr int kGzip = 16;
  z_stream stream{};
  deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, kWindowBits + (encoding == "gzip" ? kGzip : 0),
               /*memLevel=*/9, Z_DEFAULT_STRATEGY);
  std::string zeros(1 << 20, '\0');
  std::string zipped;
  std::string part(1 << 16, '\0');
  for (int64_t left = bytes; left > 0; left -= static_cast<int64_t>(zeros.size())) {
    stream.next_in = reinterpret_cast<Bytef*>(zeros.data());
    stream.avail_in = static_cast<uInt>(zeros.size());
    do {
      stream.next_out = reinterpret_cast<Bytef*>(part.data());
      stream.avail_out = static_cast<uInt>(part.size());
      deflate(&stream, left > static_cast<int64_t>(zeros.size()) ? Z_NO_FLUSH : Z_FINISH);
      zipped.append(part, 0, part.size() - stream.avail_out);
    } while (stream.avail_out == 0);
  }
  deflateEnd(&stream);
  return zipped;
}

TEST_F(HostileHttp2Test, MessagesThatInflateAThousandfoldAreRefused) {
  constexpr int kSeconds = 3;
  const std::vector<std::string> encodings = {"gzip", "deflate"};
  std::vector<std::string> bombs;
  for (const std::string& encoding : encodings) {
    bombs.push_back(ZippedZeros(1024 * kMiB, encoding));
    EXPECT_LT(bombs.back().size(), 5 * kMiB);
  }
  Observer observer(watched_.server().address(), kSeconds);
  for (size_t i = 0; i < encodings.size(); ++i) {
    for (const std::string_view path : {Http2Peer::kRotate, Http2Peer::kRotateStream,
                                        std::string_view("/rope.v1.RopeService/Describe"),
                                        std::string_view("/rope.v1.RopeService/Fingerprint"),
                                        std::string_view("/grpc.health.v1.Health/Check")}) {
      Http2Peer peer = watched_.NewPeer();
      const uint32_t stream = peer.StartCall(path, encodings[i]);
      peer.SendPart(stream, bombs[i], bombs[i].size(), /*last=*/true);
      EXPECT_TRUE(peer.AwaitEnd(stream)) << path;
      EXPECT_EQ(peer.stream(stream).code, grpc::StatusCode::UNIMPLEMENTED) << path;
      EXPECT_THAT(peer.stream(stream).message, ::testing::HasSubstr(encodings[i])) << path;
    }
  }
  const Observer::Counts seen = observer.Await();
  std::printf("measured: an observer beside 1 GiB in a message: %ld answered, slowest %.1f ms\n",
              seen.answered, seen.slowest_ms);
  EXPECT_EQ(seen.failed, 0);
  EXPECT_GT(seen.answered, 0);
  EXPECT_LT(seen.slowest_ms, 4000);
}

TEST_F(HostileHttp2Test, Garbage) {
  std::mt19937 random(29);  // seeded: the same bytes each time
  const auto bytes = [&random](size_t count) {
    std::string result(count, '\0');
    for (char& byte : result) byte = static_cast<char>(random());
    return result;
  };
  for (int i = 0; i < 40; ++i) {
    Http2Peer noise = watched_.NewPeer();
    noise.Send(bytes(4096));
    Http2Peer framed = watched_.NewPeer();
    framed.StartCall();
    std::string frames;
    for (int j = 0; j < 30; ++j) {
      frames += Frame(static_cast<FrameType>(random() % 11), static_cast<uint8_t>(random()),
                      random() % 4, bytes(random() % 64));
    }
    framed.Send(frames);
    framed.AwaitPong(milliseconds(20));
  }
  // An HTTP/1.1 request where the HTTP/2 preface must be.
  proto::FileDescriptor http1 = ConnectTcp(watched_.server().address());
  const std::string get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  EXPECT_EQ(send(http1.get(), get.data(), get.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(get.size()));
}

TEST_F(HostileHttp2Test, ConnectionsThatSayNothingMore) {
  std::vector<std::unique_ptr<Http2Peer>> peers;
  std::vector<proto::FileDescriptor> silent(100);
  for (proto::FileDescriptor& connection : silent) {
    connection = ConnectTcp(watched_.server().address());
  }
  for (int i = 0; i < 200; ++i) {
    peers.push_back(std::make_unique<Http2Peer>(i % 2 == 0 ? ConnectTcp(watched_.server().address())
                                                           : ConnectUnix(watched_.path())));
    peers.back()->StartCall();
  }
  for (const auto& peer : peers) EXPECT_TRUE(peer->AwaitPong());
  watched_.ExpectUnharmed("300 connections that say nothing more");
}

// The limit of open files that a process starts with while this exists.
class DescriptorsAtStart {
 public:
  explicit DescriptorsAtStart(rlim_t count) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    rlimit limit = before_;
    limit.rlim_cur = count;
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  ~DescriptorsAtStart() { EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0); }
  rlim_t hard() const { return before_.rlim_max; }

 private:
  rlimit before_ = {};
};

rlimit DescriptorsOf(TestServer& server) {
  rlimit limit{};
  EXPECT_EQ(prlimit(server.process().pid(), RLIMIT_NOFILE, nullptr, &limit), 0);
  return limit;
}

TEST(DescriptorsTest, ServerTakesAsManyAsTheSystemAllows) {
  const DescriptorsAtStart few(64);
  TestServer server;
  EXPECT_EQ(DescriptorsOf(server).rlim_cur, few.hard());
}

class WithoutDescriptorsTest : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr int kConnections = 1100;
  static constexpr rlim_t kDescriptors = 128;

  WithoutDescriptorsTest() {
    const rlimit limit = {kDescriptors, kDescriptors};
    EXPECT_EQ(prlimit(server_.process().pid(), RLIMIT_NOFILE, &limit, nullptr), 0);
  }
  // The server has come to its limit: a connection that it serves takes two descriptors. It closes
  // some at once, so this is no state to ask for again.
  bool CameToItsLimit() {
    const auto end = std::chrono::steady_clock::now() + seconds(10);
    while (std::chrono::steady_clock::now() < end) {
      if (OpenDescriptors(server_.process().pid()) >= static_cast<int>(kDescriptors) - 1)
        return true;
      std::this_thread::yield();
    }
    return false;
  }
  // Seconds until a new client, a process of its own, has an answer from `target`.
  static double SecondsOfANewClient(const std::string& target) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(RunProgram({RopectlProgram(), "health", "--target=" + target}).status, 0) << target;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  const std::string path_ = TemporaryFolder() + "/s";
  TestServer server_{{"--listen=unix:" + path_, "--log_level=error"}};
};

// GetParam(): the connections send HTTP/2's preface, so that they are not closed for silence.
TEST_P(WithoutDescriptorsTest, NewClientsAreServedOnceTheConnectionsHaveClosed) {
  const auto known = server_.NewStub();
  EXPECT_TRUE(Serves(*known));
  std::vector<proto::FileDescriptor> connections(kConnections);
  for (proto::FileDescriptor& connection : connections) {
    connection = ConnectTcp(server_.address());
    if (GetParam())
      send(connection.get(), kHttp2Preface.data(), kHttp2Preface.size(), MSG_NOSIGNAL);
  }
  EXPECT_TRUE(CameToItsLimit());
  EXPECT_TRUE(Serves(*known));
  connections.clear();
  for (const std::string& target : {server_.address(), "unix:" + path_}) {
    const double took = SecondsOfANewClient(target);
    std::printf("measured: a new client at %s is answered after %.2f s\n", target.c_str(), took);
    EXPECT_LT(took, 4) << target;
  }
}

INSTANTIATE_TEST_SUITE_P(SilentAndNot, WithoutDescriptorsTest, ::testing::Bool());

}  // namespace
}  // namespace rope::testing
