// A connection of a client, and the client's end of its socket.
//
// Threading:  Confined to one thread.
#ifndef ROPE_TESTS_UNIT_SERVER_TEST_CONNECTION_H_
#define ROPE_TESTS_UNIT_SERVER_TEST_CONNECTION_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/ipc/file_descriptor.h"
#include "server/clients/connections.h"

namespace rope::testing {

class TestConnection {
 public:
  enum class Transport { kUnix, kTcp };

  TestConnection(server::Connections& connections, const std::string& owner,
                 Transport transport = Transport::kUnix) {
    proto::FileDescriptor end;
    transport == Transport::kUnix ? ConnectUnix(end) : ConnectTcp(end);
    server_ = end.get();
    auto place = connections.Enter(server_, owner, transport == Transport::kUnix, std::move(end));
    EXPECT_TRUE(place.ok()) << place.status();
    if (place.ok()) place_ = *std::move(place);
    connection_ = connections.Of(absl::StrCat("fd:", server_));
  }

  const std::shared_ptr<server::Connection>& connection() const { return connection_; }
  // Sends bytes, which the server has read when this returns.
  void Send(size_t bytes) {
    constexpr size_t kPart = 16 * 1024;
    std::string part(kPart, 'x');
    for (size_t left = bytes; left > 0; left -= part.size()) {
      part.resize(std::min(left, kPart));
      const auto size = static_cast<ssize_t>(part.size());
      EXPECT_EQ(send(client_.get(), part.data(), part.size(), MSG_NOSIGNAL), size);
      EXPECT_EQ(recv(server_, part.data(), part.size(), MSG_WAITALL), size);
    }
  }
  // Also takes what the server has sent.
  bool IsClosed() {
    std::string part(1024, 0);
    ssize_t got = 0;
    while ((got = recv(client_.get(), part.data(), part.size(), MSG_DONTWAIT)) > 0) {
      received_.append(part, 0, static_cast<size_t>(got));
    }
    return got == 0;
  }
  // What IsClosed has taken.
  const std::string& received() const { return received_; }
  void Leave() { place_ = {}; }

 private:
  void ConnectUnix(proto::FileDescriptor& end) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    client_ = proto::FileDescriptor(ends[0]);
    end = proto::FileDescriptor(ends[1]);
  }
  void ConnectTcp(proto::FileDescriptor& end) {
    const proto::FileDescriptor listening(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    socklen_t length = sizeof(address);
    EXPECT_EQ(bind(listening.get(), any, length), 0);
    EXPECT_EQ(listen(listening.get(), 1), 0);
    EXPECT_EQ(getsockname(listening.get(), any, &length), 0);
    client_ = proto::FileDescriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(client_.get(), any, length), 0);
    end = proto::FileDescriptor(accept(listening.get(), nullptr, nullptr));
  }

  proto::FileDescriptor client_;
  std::string received_;
  int server_ = -1;  // the server's end, which the connection owns
  server::Connections::Place place_;
  std::shared_ptr<server::Connection> connection_;
};

}  // namespace rope::testing

#endif  // ROPE_TESTS_UNIT_SERVER_TEST_CONNECTION_H_
