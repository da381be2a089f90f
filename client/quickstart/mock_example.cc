// The example of client/README.md: a unit test of a program's code, without a server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "rope/client.h"
#include "rope/mock.h"

// The code under test: 0, or the first channel of a rotated query.
float FirstChannel(const rope::client::Client& client) {
  float q[2] = {1, 0};
  rope::client::RotateRequest request;
  request.tensors = {{.layout = "SD", .shape = {1, 2}, .data = q, .output = q}};
  return client.Rotate(request).ok() ? q[0] : 0;
}

TEST(FirstChannelTest, IsZeroWithoutAServer) {
  auto connection = std::make_shared<rope::client::MockConnection>();
  EXPECT_CALL(*connection, Rotate)
      .WillOnce([](const rope::client::RotateRequest& request, const auto&) {
        static_cast<float*>(request.tensors[0].output)[0] = 0.5f;
        return rope::client::RotateReply();
      })
      .WillOnce(
          testing::Return(rope::Status(rope::StatusCode::kUnavailable, "the server has gone")));
  const rope::client::Client client(connection);
  EXPECT_EQ(FirstChannel(client), 0.5f);
  EXPECT_EQ(FirstChannel(client), 0);
}
