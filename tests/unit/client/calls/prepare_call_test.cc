#include "client/calls/prepare_call.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "rope/client.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/client/fake_prepare.h"
#include "tests/unit/client/fake_server.h"

namespace rope::client {
namespace {

using Counts = FakePrepare::Counts;

const CallOptions kOnce = {.attempts_max = 1};

class PrepareCallTest : public ::testing::Test {
 protected:
  // A request with other values each time.
  RotateRequest Next() {
    data_ = {++step_, -step_};
    RotateRequest request{.request_id = std::to_string(step_),
                          .rope = {.model = "m"},
                          .positions = {.start = static_cast<int64_t>(step_)}};
    request.tensors = {{.layout = "TD", .shape = {1, 2}, .data = data_.data()}};
    return request;
  }
  // The values of the next request as a call with `rotation`.
  RotateRequest Next(const PreparedRotation& rotation) {
    RotateRequest request = Next();
    request.prepared = rotation;
    request.rope = {};
    request.tensors = {{.data = data_.data()}};
    return request;
  }
  // The reply is that of the last request.
  void Check(const Result<RotateReply>& reply) const {
    ASSERT_TRUE(reply.ok()) << reply.status().ToString();
    EXPECT_EQ(reply->request_id, std::to_string(step_));
    ASSERT_EQ(reply->tensors.size(), 1u);
    EXPECT_THAT(reply->tensors[0].shape, ElementsAre(1, 2));
    EXPECT_EQ(static_cast<const float*>(reply->tensors[0].data)[1], -step_);
  }
  Client Connected() { return Client::Connect(fake_.target()).value(); }

  float step_ = 0;
  std::vector<float> data_;
  FakeServer fake_;
  FakePrepare server_{fake_};
};

TEST_F(PrepareCallTest, APreparedRotationGoesByItsIdAtOnceOnEveryPath) {
  const Client client = Connected();
  ASSERT_OK(rotation, client.Prepare(Next()));
  EXPECT_EQ(rotation->id(), "prepared-1");
  EXPECT_THAT(rotation->warnings(), ElementsAre("careful"));
  Check(client.Rotate(Next(*rotation)));
  Check(client.RotateFuture(Next(*rotation)).get());
  EXPECT_EQ(server_.counts(), (Counts{.questions = 1, .whole = 0, .by_id = 2}));
  EXPECT_FALSE(server_.received().has_rope());
}

TEST_F(PrepareCallTest, AForgottenIdIsFollowedByTheWholeRequestInTheSameAttempt) {
  const Client client = Connected();
  const PreparedRotation rotation = client.Prepare(Next()).value();
  server_.Forget();
  Check(client.Rotate(Next(rotation), kOnce));
  EXPECT_EQ(server_.counts(), (Counts{.questions = 2, .whole = 1, .by_id = 1}));
  Check(client.Rotate(Next(rotation), kOnce));
  EXPECT_EQ(server_.counts(), (Counts{.questions = 2, .whole = 1, .by_id = 2}));
}

TEST_F(PrepareCallTest, WhatTheServerDoesNotPrepareAgainGoesWhole) {
  const Client client = Connected();
  const PreparedRotation rotation = client.Prepare(Next()).value();
  server_.Forget();
  server_.Refuse({grpc::StatusCode::RESOURCE_EXHAUSTED, "rotate: got 1, want 0"});
  for (int i = 0; i < 3; ++i) Check(client.Rotate(Next(rotation), kOnce));
  EXPECT_EQ(server_.counts(), (Counts{.questions = 4, .whole = 3, .by_id = 3}));
}

TEST_F(PrepareCallTest, TheLengthOfAnOpenAxisIsSentWithTheShape) {
  const Client client = Connected();
  RotateRequest largest = Next();
  largest.tensors[0].shape = {8, 2};
  const PreparedRotation rotation = client.Prepare(largest, "T").value();
  EXPECT_EQ(server_.asked().open_axis(), "T");
  Check(client.Rotate(Next(rotation.WithLength(1))));
  EXPECT_THAT(server_.received().tensors(0).array().shape(), ElementsAre(1, 2));
  server_.Forget();
  Check(client.Rotate(Next(rotation.WithLength(1))));
}

}  // namespace
}  // namespace rope::client
