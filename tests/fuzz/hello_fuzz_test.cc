// The first bytes of a new connection: hellos, damaged hellos and random bytes over a real socket,
// in parts of any size, with any number of descriptors in each part. The server's half must read
// exactly the hello and leak no descriptor. The client's half must accept an answer or return the
// reason for rejecting it.
//
// ROPE_FUZZ_ROUNDS=N sets the number of connections for each test, ROPE_FUZZ_SEED=N the seed.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "proto/ipc/hello.h"
#include "server/ipc/listener.h"
#include "tests/fuzz/fuzz_random.h"
#include "tests/support/matchers.h"
#include "tests/support/process_memory.h"

namespace rope::server {
namespace {

using ::rope::testing::FuzzRandom;
using ::rope::testing::FuzzRounds;
using ::rope::testing::FuzzSeed;
using ::rope::testing::OpenDescriptors;

constexpr uint64_t kRounds = 40000;
constexpr uint64_t kSeed = 20260107;
constexpr std::string_view kMagic = "RoPEmem1";
constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t kDescriptorsMax = 253;  // the system's limit for one part

struct Sockets {
  Sockets() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    client = proto::FileDescriptor(ends[0]);
    server = proto::FileDescriptor(ends[1]);
  }

  proto::FileDescriptor client;
  proto::FileDescriptor server;
};

// One part of the bytes that a connection sends.
struct Part {
  std::string bytes;
  size_t descriptors = 0;
};

class HelloFuzzTest : public ::testing::Test {
 protected:
  static std::string Text(const proto::HelloBytes& bytes) { return {bytes.data(), bytes.size()}; }

  // Often a hello, or a hello with a few changed bytes.
  std::string Changed(std::string bytes) {
    if (random_.OneIn(8)) return random_.RandomBytes(random_.Below(80));
    if (random_.OneIn(8)) return std::string(kHttp2Preface.substr(0, 1 + random_.Below(24)));
    if (random_.OneIn(8)) bytes += random_.RandomBytes(random_.Below(40));
    if (random_.OneIn(2)) return bytes;
    if (random_.OneIn(3)) {
      random_.Damage(bytes);
    } else {  // after the magic
      char& byte = bytes[kMagic.size() + random_.Below(bytes.size() - kMagic.size())];
      byte = static_cast<char>(byte ^ 1 << random_.Below(8));
    }
    return bytes;
  }
  std::string RandomHello() {
    const auto bytes = static_cast<uint64_t>(random_.EdgeInteger());
    const auto ring_bytes = static_cast<uint64_t>(random_.OneIn(2) ? 0 : random_.EdgeInteger());
    return Changed(Text(proto::Encode(proto::ClientHello{bytes, ring_bytes})));
  }

  std::vector<Part> Parts(std::string_view bytes, uint64_t descriptors_in) {
    const bool at_once = random_.OneIn(2);
    std::vector<Part> parts;
    while (!bytes.empty()) {
      const size_t size = at_once ? bytes.size() : 1 + random_.Below(bytes.size());
      parts.push_back({.bytes = std::string(bytes.substr(0, size))});
      bytes.remove_prefix(size);
      if (!random_.OneIn(descriptors_in)) continue;
      parts.back().descriptors = random_.OneIn(64) ? kDescriptorsMax : 1 + random_.Below(3);
    }
    return parts;
  }

  void Send(int socket, const Part& part) {
    const std::vector<int> passed(part.descriptors, passed_.get());
    std::vector<char> control(CMSG_SPACE(passed.size() * sizeof(int)));
    iovec bytes = {const_cast<char*>(part.bytes.data()), part.bytes.size()};
    msghdr message{};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    if (!passed.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr& rights = *CMSG_FIRSTHDR(&message);
      rights.cmsg_level = SOL_SOCKET;
      rights.cmsg_type = SCM_RIGHTS;
      rights.cmsg_len = CMSG_LEN(passed.size() * sizeof(int));
      std::memcpy(CMSG_DATA(&rights), passed.data(), passed.size() * sizeof(int));
    }
    ASSERT_EQ(sendmsg(socket, &message, MSG_NOSIGNAL), static_cast<ssize_t>(part.bytes.size()));
  }

  FuzzRandom random_{FuzzSeed(kSeed)};
  const proto::FileDescriptor passed_{open("/dev/null", O_RDONLY | O_CLOEXEC)};
};

class HelloReaderFuzzTest : public HelloFuzzTest {
 protected:
  // The reader's required result for all bytes and descriptors that were sent.
  static HelloReader::Next Expected(std::string_view sent, bool hello, bool ended) {
    if (sent.starts_with('\x16')) return HelloReader::Next::kTls;
    if (!sent.empty() && (!hello || sent[0] != 'R')) {
      const bool is_part = kHttp2Preface.starts_with(sent) && sent.size() < kHttp2Preface.size();
      return is_part ? HelloReader::Next::kWait : HelloReader::Next::kPlain;
    }
    if (sent.size() >= proto::kHelloBytes) return HelloReader::Next::kHello;
    return ended ? HelloReader::Next::kClose : HelloReader::Next::kWait;
  }
  static bool IsHello(std::string_view bytes) {
    constexpr std::string_view kVersionAndFlags("\2\0\0\0\0\0\0\0", 8);
    return bytes.starts_with(kMagic) && bytes.substr(kMagic.size()).starts_with(kVersionAndFlags);
  }

  void Round() {
    const std::string bytes = RandomHello();
    SCOPED_TRACE(absl::BytesToHexString(bytes));
    const bool hello = !random_.OneIn(8);
    Sockets sockets;
    HelloReader reader;
    const auto speaks = hello ? HelloReader::Speaks::kHttp2OrHello : HelloReader::Speaks::kHttp2;
    std::string sent;
    size_t came = 0;  // descriptors that came with the bytes of the hello
    HelloReader::Next next = HelloReader::Next::kWait;
    // Behind a part with descriptors the reader sees no more of a preface, and closes it in time.
    const bool is_preface = kHttp2Preface.starts_with(bytes);
    for (const Part& part : Parts(bytes, is_preface ? uint64_t{1} << 60 : 3)) {
      if (sent.size() < proto::kHelloBytes) came += part.descriptors;
      Send(sockets.client.get(), part);
      sent += part.bytes;
      if (random_.OneIn(3)) continue;  // read when more has arrived
      next = reader.Advance(sockets.server.get(), speaks);
      ASSERT_EQ(next, Expected(sent, hello, false));
      if (next != HelloReader::Next::kWait) break;
    }
    const bool ended = random_.OneIn(2);
    if (ended) shutdown(sockets.client.get(), SHUT_WR);
    if (next == HelloReader::Next::kWait) next = reader.Advance(sockets.server.get(), speaks);
    ASSERT_EQ(next, Expected(sent, hello, ended));
    CheckWhatIsLeft(sockets.server.get(), sent, next);
    if (next == HelloReader::Next::kHello) CheckHello(sent, came, reader);
    ++(next == HelloReader::Next::kHello ? hellos_ : others_);
  }

  // The socket must still hold all bytes of a plain connection, or all bytes after a hello.
  static void CheckWhatIsLeft(int socket, std::string_view sent, HelloReader::Next next) {
    std::array<char, 256> left{};
    const ssize_t got = recv(socket, left.data(), left.size(), MSG_DONTWAIT);
    const std::string_view rest(left.data(), static_cast<size_t>(std::max<ssize_t>(got, 0)));
    if (next == HelloReader::Next::kPlain || next == HelloReader::Next::kTls) {
      EXPECT_EQ(rest, sent.substr(0, rest.size()));
      EXPECT_FALSE(rest.empty());
    }
    if (next == HelloReader::Next::kHello) {
      const std::string_view behind = sent.substr(proto::kHelloBytes);
      EXPECT_EQ(rest, behind.substr(0, rest.size()));
      EXPECT_EQ(rest.empty(), behind.empty());
    }
  }

  void CheckHello(std::string_view sent, size_t came, HelloReader& reader) {
    EXPECT_EQ(Text(reader.bytes()), sent.substr(0, proto::kHelloBytes));
    const auto decoded = proto::DecodeClientHello(reader.bytes());
    EXPECT_EQ(decoded.ok(), IsHello(sent)) << decoded.status();
    EXPECT_THAT(std::string(decoded.status().message()), HasSubstr(decoded.ok() ? "" : ": got "));
    const size_t wanted = decoded.ok() && decoded->ring_bytes > 0 ? 2 : 1;
    const auto descriptors = reader.ReleaseDescriptors(wanted);
    EXPECT_EQ(descriptors.ok(), came == wanted) << came << " came; " << descriptors.status();
    taken_ += decoded.ok() && descriptors.ok() ? 1 : 0;
  }

  int64_t hellos_ = 0;
  int64_t others_ = 0;
  int64_t taken_ = 0;
};

TEST_F(HelloReaderFuzzTest, WhatIsSaidFirstIsReadOrLeftAndNoDescriptorStays) {
  const int before = OpenDescriptors(getpid());
  const uint64_t rounds = FuzzRounds(kRounds);
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) Round();
  EXPECT_EQ(OpenDescriptors(getpid()), before);
  std::printf("measured: %lld hellos, %lld of them legal with all they need; %lld others\n",
              static_cast<long long>(hellos_), static_cast<long long>(taken_),
              static_cast<long long>(others_));
  EXPECT_GT(hellos_, 0);
  EXPECT_GT(taken_, 0);
  EXPECT_GT(others_, 0);
}

class HelloAnswerFuzzTest : public HelloFuzzTest {
 protected:
  // The server's answer is in the socket before the client reads, and nothing follows it.
  void Round() {
    const proto::ServerHello answer = {static_cast<absl::StatusCode>(random_.Below(20)),
                                       random_.Next(), random_.Next()};
    const std::string bytes = Changed(Text(proto::Encode(answer)));
    SCOPED_TRACE(absl::BytesToHexString(bytes));
    Sockets sockets;
    for (const Part& part : Parts(bytes, 3)) Send(sockets.server.get(), part);
    shutdown(sockets.server.get(), SHUT_WR);
    const int memory = passed_.get();
    const auto exchanged = proto::ExchangeHello(sockets.client.get(), {4096}, {&memory, 1});
    const std::string_view read = std::string_view(bytes).substr(0, proto::kHelloBytes);
    constexpr std::string_view kVersion("\2\0\0\0", 4);
    const bool is_hello = read.size() == proto::kHelloBytes && read.starts_with(kMagic) &&
                          read.substr(kMagic.size()).starts_with(kVersion);
    EXPECT_EQ(exchanged.ok(), is_hello) << exchanged.status();
    ++(exchanged.ok() ? taken_ : refused_);
    if (exchanged.ok()) return;
    EXPECT_THAT(exchanged.status().code(),
                AnyOf(absl::StatusCode::kUnavailable, absl::StatusCode::kInvalidArgument,
                      absl::StatusCode::kUnimplemented));
    EXPECT_THAT(std::string(exchanged.status().message()), HasSubstr(": got "));
  }

  int64_t taken_ = 0;
  int64_t refused_ = 0;
};

TEST_F(HelloAnswerFuzzTest, ClientTakesAnAnswerOrSaysWhyNotAndKeepsNoDescriptor) {
  const int before = OpenDescriptors(getpid());
  const uint64_t rounds = FuzzRounds(kRounds);
  for (uint64_t round = 0; round < rounds && !HasFailure(); ++round) Round();
  EXPECT_EQ(OpenDescriptors(getpid()), before);
  std::printf("measured: %lld answers taken, %lld refused\n", static_cast<long long>(taken_),
              static_cast<long long>(refused_));
  EXPECT_GT(taken_, 0);
  EXPECT_GT(refused_, 0);
}

}  // namespace
}  // namespace rope::server
