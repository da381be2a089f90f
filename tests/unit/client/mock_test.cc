// A program's code with a mock in place of the connection.
#include "rope/mock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "rope/client.h"

namespace rope::client {
namespace {

using ::testing::_;
using ::testing::DoAll;
using ::testing::NiceMock;
using ::testing::Return;
using ::testing::SaveArg;

// The code of a program: the id of the last reply, or a text for the error.
std::string IdOf(const Client& client, int64_t position) {
  RotateRequest request;
  request.positions.start = position;
  const Result<RotateReply> reply = client.Rotate(request);
  return reply.ok() ? reply->request_id : "failed: " + reply.status().ToString();
}

class MockTest : public ::testing::Test {
 protected:
  const std::shared_ptr<NiceMock<MockConnection>> connection_ =
      std::make_shared<NiceMock<MockConnection>>();
  const Client client_{connection_};
};

TEST_F(MockTest, ReplyAndErrorReachTheProgram) {
  EXPECT_CALL(*connection_, Rotate)
      .WillOnce([](const RotateRequest& request, const CallOptions&) {
        return RotateReply{.request_id = std::to_string(request.positions.start.value())};
      })
      .WillOnce(Return(Status(StatusCode::kUnavailable, "draining")));
  EXPECT_EQ(IdOf(client_, 7), "7");
  EXPECT_EQ(IdOf(client_, 8), "failed: UNAVAILABLE: draining");
}

TEST_F(MockTest, AsynchronousCallsAreAnsweredAndCancelled) {
  EXPECT_CALL(*connection_, RotateAsync).WillOnce(AnswerWith([](const RotateRequest& request) {
    return RotateReply{.request_id = request.request_id};
  }));
  EXPECT_EQ(client_.RotateFuture({.request_id = "mine"}).get()->request_id, "mine");

  RotateCallback callback;
  bool cancelled = false;
  EXPECT_CALL(*connection_, RotateAsync).WillOnce(DoAll(SaveArg<1>(&callback), [&](auto&&...) {
    return Call([&cancelled] { cancelled = true; });
  }));
  Status status;
  const Call call = client_.RotateAsync({}, [&](const auto& reply) { status = reply.status(); });
  call.Cancel();
  EXPECT_TRUE(cancelled);
  callback(Status(StatusCode::kCancelled, "by the caller"));
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
}

TEST_F(MockTest, ArenaIsMemoryThatNoServerShares) {
  Slot slot = client_.arena().Allocate(4096).value();
  std::memset(slot.data(), 1, 4096);
  EXPECT_EQ(client_.arena().capacity_bytes(), MockConnection::kArenaBytes);
  EXPECT_EQ(client_.arena().used_bytes(), 4096);
  EXPECT_EQ(client_.transport().transport, Transport::kInline);
}

TEST_F(MockTest, PreparedRotationsCanBeMadeWithoutAServer) {
  const std::vector<float> data(4, 1.f);
  RotateRequest request{.rope = {.model = "m"}};
  request.tensors = {{.layout = "SD", .shape = {2, 2}, .data = data.data()}};
  EXPECT_CALL(*connection_, Prepare(_, "S", _))
      .WillOnce([](const RotateRequest& prepared, const std::string& open_axis, const auto&) {
        return PreparedRotation::CreateLocal(prepared, open_axis);
      });
  const PreparedRotation prepared = client_.Prepare(request, "S").value();
  EXPECT_EQ(prepared.id(), std::string(32, '0'));
  request.rows.emplace();
  EXPECT_EQ(PreparedRotation::CreateLocal(request).status().message(), "");
}

}  // namespace
}  // namespace rope::client
