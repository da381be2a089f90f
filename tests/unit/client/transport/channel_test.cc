#include "client/transport/channel.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace rope::client
