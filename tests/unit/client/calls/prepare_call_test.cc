#include "client/calls/prepare_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <string>
#include <vector>

#include "rope/client.h"
#include "tests/unit/client/fake_prepare.h"
#include "tests/unit/client/fake_server.h"

namespace rope::client {
namespace {

using ::testing::ElementsAre;
using Counts = FakePrepare::Counts;

class PrepareCallTest : public ::testing::Test {
 protected:
  // A request that repeats with other values each time.
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
  template <typename Rotate>
  void Repeat(int times, const Rotate& rotate) {
    for (int i = 0; i < times; ++i) Check(rotate(Next()));
  }
  // Repeats until a request goes by its id. No request waits for the answer to Prepare.
  template <typename Rotate>
  void RepeatUntilById(const Rotate& rotate) {
    const int before = server_.counts().by_id;
    while (server_.counts().by_id == before && !HasFatalFailure()) Check(rotate(Next()));
  }
  Client Connected(const ConnectOptions& options = {}) {
    return Client::Connect(fake_.target(), options).value();
  }

  float step_ = 0;
  std::vector<float> data_;
  FakeServer fake_;
  FakePrepare server_{fake_};
};

TEST_F(PrepareCallTest, TheSecondOfEqualRequestsIsPreparedAndTheThirdGoesById) {
  const Client client = Connected();
  const auto rotate = [&](const RotateRequest& request) { return client.Rotate(request); };
  Repeat(1, rotate);
  EXPECT_EQ(server_.counts(), (Counts{.questions = 0, .whole = 1, .by_id = 0}));
  Repeat(1, rotate);
  EXPECT_EQ(server_.counts(), (Counts{.questions = 1, .whole = 2, .by_id = 0}));
  Repeat(3, rotate);
  EXPECT_EQ(server_.counts(), (Counts{.questions = 1, .whole = 2, .by_id = 3}));
  EXPECT_EQ(server_.received().prepared_id(), "prepared-1");
  EXPECT_FALSE(server_.received().has_rope());
}

TEST_F(PrepareCallTest, SwitchedOffEveryRequestGoesWhole) {
  const Client client = Connected({.prepare_repeated = false});
  Repeat(5, [&](const RotateRequest& request) { return client.Rotate(request); });
  EXPECT_EQ(server_.counts(), (Counts{.questions = 0, .whole = 5, .by_id = 0}));
}

TEST_F(PrepareCallTest, AForgottenIdIsFollowedByTheWholeRequestInTheSameAttempt) {
  const Client client = Connected({.attempts_max = 1});
  const auto rotate = [&](const RotateRequest& request) { return client.Rotate(request); };
  Repeat(3, rotate);
  server_.Forget();
  Repeat(1, rotate);
  EXPECT_EQ(server_.counts(), (Counts{.questions = 1, .whole = 3, .by_id = 2}));
  Repeat(2, rotate);
  EXPECT_EQ(server_.counts(), (Counts{.questions = 2, .whole = 4, .by_id = 3}));
}

TEST_F(PrepareCallTest, AnotherConnectionStartsWithoutIds) {
  const Client first = Connected();
  Repeat(3, [&](const RotateRequest& request) { return first.Rotate(request); });
  const Client second = Connected();
  Repeat(1, [&](const RotateRequest& request) { return second.Rotate(request); });
  EXPECT_EQ(server_.counts(), (Counts{.questions = 1, .whole = 3, .by_id = 1}));
}

TEST_F(PrepareCallTest, WhatTheServerCannotPrepareGoesWholeFromThenOn) {
  server_.Refuse({grpc::StatusCode::INVALID_ARGUMENT, "rotate: got 1, want 2"});
  const Client client = Connected();
  Repeat(6, [&](const RotateRequest& request) { return client.Rotate(request); });
  EXPECT_EQ(server_.counts(), (Counts{.questions = 1, .whole = 6, .by_id = 0}));
}

TEST_F(PrepareCallTest, AFailedRequestIsNotPrepared) {
  const Client client = Connected();
  fake_.OnRotate([](grpc::CallbackServerContext&, const std::string&, std::string&) {
    return grpc::Status(grpc::StatusCode::OUT_OF_RANGE, "positions: got 9, want 8");
  });
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(client.Rotate(Next()).ok());
  EXPECT_EQ(server_.counts().questions, 0);
}

TEST_F(PrepareCallTest, AsynchronousCallsDoTheSame) {
  const Client client = Connected({.attempts_max = 1});
  const auto rotate = [&](const RotateRequest& request) {
    return client.RotateFuture(request).get();
  };
  RepeatUntilById(rotate);
  EXPECT_EQ(server_.counts().questions, 1);
  server_.Forget();
  Repeat(1, rotate);
  RepeatUntilById(rotate);
  EXPECT_EQ(server_.counts().questions, 2);
}

TEST_F(PrepareCallTest, StreamsDoTheSame) {
  const Client client = Connected();
  RotateStream stream = client.OpenStream().value();
  const auto rotate = [&](const RotateRequest& request) {
    return stream.RotateFuture(request).get();
  };
  RepeatUntilById(rotate);
  server_.Forget();
  Repeat(1, rotate);
  RepeatUntilById(rotate);
  EXPECT_EQ(server_.counts().questions, 2);
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(PrepareCallTest, AStreamThatFinishesSendsForgottenRequestsWholeFirst) {
  const Client client = Connected();
  RotateStream stream = client.OpenStream().value();
  RepeatUntilById([&](const RotateRequest& request) { return stream.RotateFuture(request).get(); });
  server_.Forget();
  auto reply = stream.RotateFuture(Next());
  EXPECT_TRUE(stream.Finish().ok());
  Check(reply.get());
}

TEST_F(PrepareCallTest, APreparedRotationGoesByItsIdAtOnceOnEveryPath) {
  const Client client = Connected({.prepare_repeated = false});
  const auto rotation = client.Prepare(Next());
  ASSERT_TRUE(rotation.ok()) << rotation.status().ToString();
  EXPECT_EQ(rotation->id(), "prepared-1");
  EXPECT_THAT(rotation->warnings(), ElementsAre("careful"));
  Check(client.Rotate(Next(*rotation)));
  Check(client.RotateFuture(Next(*rotation)).get());
  RotateStream stream = client.OpenStream().value();
  Check(stream.RotateFuture(Next(*rotation)).get());
  EXPECT_EQ(server_.counts(), (Counts{.questions = 1, .whole = 0, .by_id = 3}));
}

TEST_F(PrepareCallTest, AForgottenPreparedRotationIsSentWholeAndPreparedAgain) {
  const Client client = Connected({.prepare_repeated = false});
  const PreparedRotation rotation = client.Prepare(Next()).value();
  server_.Forget();
  Check(client.Rotate(Next(rotation)));
  EXPECT_EQ(server_.counts(), (Counts{.questions = 2, .whole = 1, .by_id = 1}));
  Check(client.Rotate(Next(rotation)));
  EXPECT_EQ(server_.received().prepared_id(), "prepared-2");
}

TEST_F(PrepareCallTest, APreparedRotationWorksOnAServerThatNeverSawIt) {
  const PreparedRotation rotation = Connected().Prepare(Next()).value();
  FakeServer other;
  FakePrepare other_server(other);
  const Client client = Client::Connect(other.target()).value();
  Check(client.RotateFuture(Next(rotation)).get());
  Check(client.OpenStream()->RotateFuture(Next(rotation)).get());
  EXPECT_GE(other_server.counts().whole, 1);
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

TEST_F(PrepareCallTest, RowsAndPreparedRotationsCannotBePrepared) {
  const Client client = Connected();
  RotateRequest request = Next();
  request.rows = Rows{};
  EXPECT_EQ(client.Prepare(request).status().message(), "rows: got a table, want none");
  const PreparedRotation rotation = client.Prepare(Next()).value();
  EXPECT_EQ(client.Prepare(Next(rotation)).status().message(),
            "prepared: got a prepared rotation, want a whole request");
}

}  // namespace
}  // namespace rope::client
