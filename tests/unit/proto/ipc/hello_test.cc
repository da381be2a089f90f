#include "proto/ipc/hello.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "proto/ipc/file_descriptor.h"
#include "tests/support/status_matchers.h"

namespace rope::proto {
namespace {

TEST(HelloTest, ClientBytesAreAsDocumented) {
  const HelloBytes bytes = Encode(ClientHello{0x0102030405060708, 0x1112131415161718});
  constexpr char kWant[] =
      "RoPEmem1\x02\0\0\0\0\0\0\0"
      "\x08\x07\x06\x05\x04\x03\x02\x01\x18\x17\x16\x15\x14\x13\x12\x11";
  EXPECT_EQ(std::string(bytes.data(), bytes.size()), std::string(kWant, sizeof(kWant) - 1));
  EXPECT_EQ(bytes[0], kHelloFirstByte);
}

TEST(HelloTest, BothComeBackAsTheyWere) {
  ASSERT_OK(client, DecodeClientHello(Encode(ClientHello{1ULL << 63, 0x8000000000000003})));
  EXPECT_EQ(client->bytes, 1ULL << 63);
  EXPECT_EQ(client->ring_bytes, 0x8000000000000003);
  ASSERT_OK(server, DecodeServerHello(Encode(ServerHello{absl::StatusCode::kFailedPrecondition,
                                                         ~0ULL, 0x8000000000000001})));
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
  EXPECT_EQ(changed(31), absl::StatusCode::kOk);              // bytes of a ring
  HelloBytes answer = Encode(ServerHello{});
  answer[0] = 'P';
  EXPECT_EQ(DecodeServerHello(answer).status().code(), absl::StatusCode::kInvalidArgument);
}

// Both ends of a socket pair.
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

// The descriptors of a received message, in order.
struct Received {
  HelloBytes bytes{};
  std::vector<FileDescriptor> descriptors;
};

Received Receive(int socket) {
  Received received;
  iovec part = {received.bytes.data(), received.bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  EXPECT_EQ(recvmsg(socket, &message, MSG_CMSG_CLOEXEC), 32);
  const cmsghdr* rights = CMSG_FIRSTHDR(&message);
  if (rights == nullptr) return received;
  for (size_t at = 0; at < rights->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(rights) + at, sizeof(fd));
    received.descriptors.emplace_back(fd);
  }
  return received;
}

// Identifies the file behind a descriptor.
ino_t FileOf(const FileDescriptor& descriptor) {
  struct stat file {};
  EXPECT_EQ(fstat(descriptor.get(), &file), 0);
  return file.st_ino;
}

TEST(HelloTest, ExchangeCarriesTheDescriptorWithTheBytes) {
  Pair pair;
  const FileDescriptor memfd(memfd_create("hello", MFD_CLOEXEC));
  Received received;
  std::thread server([&] {
    received = Receive(pair.server.get());
    const HelloBytes answer = Encode(ServerHello{absl::StatusCode::kOk, 7, 9});
    // Sent in two parts, as a stream socket may deliver them.
    EXPECT_EQ(send(pair.server.get(), answer.data(), 5, 0), 5);
    EXPECT_EQ(send(pair.server.get(), answer.data() + 5, 27, 0), 27);
  });
  const auto answer = ExchangeHello(pair.client.get(), {8192}, {memfd.get()});
  server.join();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->hello.session, 7u);
  EXPECT_EQ(answer->hello.region_id, 9u);
  EXPECT_FALSE(answer->doorbell.ok());
  EXPECT_EQ(DecodeClientHello(received.bytes)->bytes, 8192u);
  EXPECT_EQ(DecodeClientHello(received.bytes)->ring_bytes, 0u);
  ASSERT_EQ(received.descriptors.size(), 1u);
  EXPECT_EQ(FileOf(received.descriptors[0]), FileOf(memfd));
}

TEST(HelloTest, ExchangeBringsARingAndComesBackWithItsDoorbell) {
  Pair pair;
  const FileDescriptor region(memfd_create("region", MFD_CLOEXEC));
  const FileDescriptor ring(memfd_create("ring", MFD_CLOEXEC));
  const FileDescriptor doorbell(eventfd(3, EFD_CLOEXEC));
  Received received;
  std::thread server([&] {
    received = Receive(pair.server.get());
    EXPECT_TRUE(SendHello(pair.server.get(), Encode(ServerHello{absl::StatusCode::kOk, 7, 9}),
                          {doorbell.get()}, 0));
  });
  const auto answer = ExchangeHello(pair.client.get(), {8192, 4096}, {region.get(), ring.get()});
  server.join();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->hello.region_id, 9u);
  EXPECT_EQ(DecodeClientHello(received.bytes)->ring_bytes, 4096u);
  ASSERT_EQ(received.descriptors.size(), 2u);
  EXPECT_EQ(FileOf(received.descriptors[0]), FileOf(region));
  EXPECT_EQ(FileOf(received.descriptors[1]), FileOf(ring));
  ASSERT_TRUE(answer->doorbell.ok());
  uint64_t count = 0;
  ASSERT_EQ(read(answer->doorbell.get(), &count, sizeof(count)), 8);
  EXPECT_EQ(count, 3u);
  EXPECT_NE(fcntl(answer->doorbell.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(HelloTest, ServerThatLeavesIsUnavailable) {
  Pair pair;
  const FileDescriptor memfd(memfd_create("hello", MFD_CLOEXEC));
  shutdown(pair.server.get(), SHUT_WR);
  EXPECT_EQ(ExchangeHello(pair.client.get(), {8192}, {memfd.get()}).status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace rope::proto
