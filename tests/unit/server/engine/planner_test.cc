#include "server/engine/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "proto/mutex.h"
#include "tests/support/received_request.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::IsOk;
using ::rope::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A planner whose first request, "blocker", waits until the test releases it.
class PlannerTest : public ::testing::Test {
 protected:
  ~PlannerTest() override {
    if (!let_go_.HasBeenNotified()) let_go_.Notify();
    planner_.Drain();
  }

  absl::Status Enqueue(const std::string& id, uint64_t session) {
    std::unique_ptr<Request> request = rope::testing::EmptyRequest(id, session);
    return planner_.Enqueue(request);
  }
  void Block() {
    ASSERT_THAT(Enqueue("blocker", 99), IsOk());
    began_.WaitForNotification();
  }

  proto::Notification began_;
  proto::Notification let_go_;
  std::vector<std::string> planned_;  // on the planner's thread; read when it has ended
  Planner planner_{[this](std::unique_ptr<Request> request) {
    if (request->arrival.id == "blocker") {
      began_.Notify();
      let_go_.WaitForNotification();
    }
    planned_.push_back(request->arrival.id + (planner_.abandoned() ? " abandoned" : ""));
  }};
};

TEST_F(PlannerTest, SessionsTakeTurns) {
  Block();
  for (const char* id : {"a1", "a2", "a3"}) ASSERT_THAT(Enqueue(id, 1), IsOk());
  ASSERT_THAT(Enqueue("b1", 2), IsOk());
  let_go_.Notify();
  planner_.Drain();
  EXPECT_THAT(planned_, ElementsAre("blocker", "a1", "b1", "a2", "a3"));
}

TEST_F(PlannerTest, DrainedPlannerRefuses) {
  planner_.Drain();
  EXPECT_THAT(Enqueue("late", 1), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("draining")));
}

TEST_F(PlannerTest, WhatQueuesAfterTheTimeoutIsAbandoned) {
  Block();
  ASSERT_THAT(Enqueue("a1", 1), IsOk());
  planner_.StopWaiting();
  let_go_.Notify();
  planner_.Drain(absl::ZeroDuration());
  EXPECT_THAT(planned_, ElementsAre("blocker abandoned", "a1 abandoned"));
}

}  // namespace
}  // namespace rope::server
