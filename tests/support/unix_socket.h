// Unix sockets without the libraries that are under test.
//
// Threading:  Functions only; ConnectUnix blocks while the backlog is full.
#ifndef ROPE_TESTS_SUPPORT_UNIX_SOCKET_H_
#define ROPE_TESTS_SUPPORT_UNIX_SOCKET_H_

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <string>

#include "proto/ipc/file_descriptor.h"

namespace rope::testing {

// REQUIRES: the path fits.
inline sockaddr_un UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// A blocking socket that is connected to the listener at `path`.
inline proto::FileDescriptor ConnectUnix(const std::string& path) {
  const sockaddr_un address = UnixAddress(path);
  proto::FileDescriptor client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return client;
}

}  // namespace rope::testing

#endif  // ROPE_TESTS_SUPPORT_UNIX_SOCKET_H_
