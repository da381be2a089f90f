#include "proto/hello.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstring>
#include <string>
#include <thread>

#include "proto/file_descriptor.h"

namespace rope::proto {
namespace {

TEST(HelloTest, ClientBytesAreAsDocumented) {
  const HelloBytes bytes = Encode(ClientHello{0x0102030405060708});
  const std::string want = std::string("RoPEmem1") + std::string("\x01\0\0\0\0\0\0\0", 8) +
                           "\x08\x07\x06\x05\x04\x03\x02\x01" + std::string(8, '\0');
  EXPECT_EQ(std::string(bytes.data(), bytes.size()), want);
  EXPECT_EQ(bytes[0], kHelloFirstByte);
}

TEST(HelloTest, BothComeBackAsTheyWere) {
  EXPECT_EQ(DecodeClientHello(Encode(ClientHello{1ULL << 63}))->bytes, 1ULL << 63);
  const auto server = DecodeServerHello(
      Encode(ServerHello{absl::StatusCode::kFailedPrecondition, ~0ULL, 0x8000000000000001}));
  ASSERT_TRUE(server.ok());
  EXPECT_EQ(server->code, absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(server->session, ~0ULL);
  EXPECT_EQ(server->region_id, 0x8000000000000001);
}

TEST(HelloTest, WhatIsNotOurHelloIsRefused) {
  const HelloBytes good = Encode(ClientHello{4096});
  const auto changed = [&](size_t byte) {
    HelloBytes bytes = good;
    bytes[byte] = static_cast<char>(bytes[byte] + 1);
    return DecodeClientHello(bytes).status().code();
  };
  EXPECT_EQ(changed(7), absl::StatusCode::kInvalidArgument);  // magic
  EXPECT_EQ(changed(8), absl::StatusCode::kUnimplemented);    // version
  EXPECT_EQ(changed(15), absl::StatusCode::kUnimplemented);   // flags
  EXPECT_EQ(changed(16), absl::StatusCode::kOk);              // bytes
  EXPECT_EQ(changed(31), absl::StatusCode::kUnimplemented);   // reserved
  HelloBytes answer = Encode(ServerHello{});
  answer[0] = 'P';
  EXPECT_EQ(DecodeServerHello(answer).status().code(), absl::StatusCode::kInvalidArgument);
}

// Both ends of a connection.
struct Pair {
  Pair() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    client = FileDescriptor(ends[0]);
    server = FileDescriptor(ends[1]);
  }
  FileDescriptor client;
  FileDescriptor server;
};

TEST(HelloTest, ExchangeCarriesTheDescriptorWithTheBytes) {
  Pair pair;
  const FileDescriptor memfd(memfd_create("hello", MFD_CLOEXEC));
  HelloBytes received{};
  FileDescriptor passed;
  std::thread server([&] {
    iovec part = {received.data(), received.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    EXPECT_EQ(recvmsg(pair.server.get(), &message, MSG_CMSG_CLOEXEC), 32);
    const cmsghdr* rights = CMSG_FIRSTHDR(&message);
    ASSERT_NE(rights, nullptr);
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(rights), sizeof(fd));
    passed = FileDescriptor(fd);
    const HelloBytes answer = Encode(ServerHello{absl::StatusCode::kOk, 7, 9});
    // In two parts, as a stream may deliver them.
    EXPECT_EQ(send(pair.server.get(), answer.data(), 5, 0), 5);
    EXPECT_EQ(send(pair.server.get(), answer.data() + 5, 27, 0), 27);
  });
  const auto answer = ExchangeHello(pair.client.get(), {8192}, memfd.get());
  server.join();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->session, 7u);
  EXPECT_EQ(answer->region_id, 9u);
  EXPECT_EQ(DecodeClientHello(received)->bytes, 8192u);
  struct stat sent {};
  struct stat got {};
  ASSERT_EQ(fstat(memfd.get(), &sent), 0);
  ASSERT_EQ(fstat(passed.get(), &got), 0);
  EXPECT_EQ(sent.st_ino, got.st_ino);
}

TEST(HelloTest, ServerThatLeavesIsUnavailable) {
  Pair pair;
  const FileDescriptor memfd(memfd_create("hello", MFD_CLOEXEC));
  shutdown(pair.server.get(), SHUT_WR);
  EXPECT_EQ(ExchangeHello(pair.client.get(), {8192}, memfd.get()).status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace rope::proto
