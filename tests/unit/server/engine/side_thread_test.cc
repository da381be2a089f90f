#include "server/engine/side_thread.h"

#include <gtest/gtest.h>

#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/mutex.h"
#include "server/clients/limits.h"
#include "server/error.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_clients.h"

namespace rope::server {
namespace {

using ::testing::_;

// Works whose first step waits until the test lets them go on.
class SideThreadTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kGreedy = 7;

  class Counted final : public SideThread::Work {
   public:
    Counted(SideThreadTest& test, int name, int steps) : test_(test), name_(name), left_(steps) {}

    absl::StatusOr<bool> Step() override {
      if (!test_.started_.HasBeenNotified()) test_.started_.Notify();
      test_.let_go_.WaitForNotification();
      proto::MutexLock lock(&test_.mutex_);
      test_.stepped_.push_back(name_);
      if (left_ == 0) return absl::InternalError("broken");
      if (left_ < 0) std::rethrow_exception(std::make_exception_ptr(std::bad_alloc()));
      return --left_ == 0;
    }
    void End(const absl::Status& status) override {
      proto::MutexLock lock(&test_.mutex_);
      test_.answers_.emplace_back(name_, status);
      test_.answered_.SignalAll();
    }

   private:
    SideThreadTest& test_;
    const int name_;
    int left_;
  };
  using Answers = std::vector<std::pair<int, absl::Status>>;

  ~SideThreadTest() override {
    if (!let_go_.HasBeenNotified()) let_go_.Notify();
  }

  // Each work belongs to a new session, unless `session` names one.
  void StartRequest(int name, int steps, std::optional<uint64_t> session = std::nullopt) {
    thread_.StartRequest(session.value_or(++last_session_),
                         std::make_unique<Counted>(*this, name, steps));
  }
  // Of the session's owner.
  void StartCall(int name, int steps, std::optional<uint64_t> session = std::nullopt,
                 SideThread::Cancelled cancelled = nullptr) {
    const uint64_t number = session.value_or(++last_session_);
    thread_.StartCall(number, clients_.Of(number).account(),
                      std::make_unique<Counted>(*this, name, steps), std::move(cancelled));
  }
  // A work whose first step waits.
  void Block() {
    StartRequest(0, 1);
    started_.WaitForNotification();
  }
  Answers AwaitAnswers(size_t count) {
    proto::MutexLock lock(&mutex_);
    while (answers_.size() < count) answered_.Wait(&mutex_);
    return answers_;
  }
  std::vector<int> Stepped() {
    proto::MutexLock lock(&mutex_);
    return stepped_;
  }
  // The only answer so far is that of `name`, which was refused with `text`.
  void ExpectRefused(int name, const std::string& text) {
    const Answers answers = AwaitAnswers(1);
    EXPECT_THAT(answers, ElementsAre(Pair(name, IsExhausted(text))));
    EXPECT_GT(proto::PartsOf(answers[0].second).retry_delay_ms, 0);
  }

  testing::TestClients clients_;
  uint64_t last_session_ = 1000;
  proto::Notification started_;
  proto::Notification let_go_;
  proto::Mutex mutex_;
  proto::CondVar answered_;
  Answers answers_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> stepped_ ABSL_GUARDED_BY(mutex_);
  SideThread thread_{clients_.clock};
};

TEST_F(SideThreadTest, SessionsTakeTurnsSoThatAShortWorkIsDoneEarly) {
  Block();
  StartCall(1, 3, kGreedy);
  StartCall(2, 1, kGreedy);
  StartRequest(3, 1);
  StartCall(4, 2);
  let_go_.Notify();
  EXPECT_THAT(AwaitAnswers(5), Each(Pair(_, IsOk())));
  EXPECT_THAT(Stepped(), ElementsAre(0, 1, 3, 4, 2, 4, 1, 1));
}

TEST_F(SideThreadTest, CallsAreBoundedAndRequestsAreNot) {
  Block();
  for (int i = 0; i < limits::kControlCallsMax; ++i) StartCall(i, 1);
  StartCall(999, 1);
  ExpectRefused(999,
                "queue: got call that takes long, number 257 of all clients, want at most 256");
  StartRequest(1000, 1);
  let_go_.Notify();
  EXPECT_THAT(AwaitAnswers(static_cast<size_t>(limits::kControlCallsMax) + 3),
              Contains(Pair(1000, IsOk())));
}

TEST_F(SideThreadTest, OneOwnerGetsHalfOfThePlacesOfCalls) {
  constexpr int64_t kHalf = limits::kControlCallsMax / 2;
  Block();
  for (int i = 0; i < kHalf; ++i) {
    StartRequest(i, 1, kGreedy);
    StartCall(i, 1, kGreedy);
  }
  StartCall(999, 1, kGreedy);
  ExpectRefused(999, absl::StrCat("queue: got call that takes long, number 129 of uid:", kGreedy,
                                  ", want at most 128"));
  StartCall(1000, 1);
  let_go_.Notify();
  EXPECT_THAT(AwaitAnswers(static_cast<size_t>(limits::kControlCallsMax) + 3),
              Contains(Pair(1000, IsOk())))
      << "another owner has its own places";
}

TEST_F(SideThreadTest, FailedStepIsTheAnswer) {
  StartCall(1, 0);
  let_go_.Notify();
  EXPECT_THAT(AwaitAnswers(1), ElementsAre(Pair(1, IsInternal("broken"))));
}

TEST_F(SideThreadTest, StepWithoutMemoryEndsItsWorkOnly) {
  StartCall(1, -1);
  StartCall(2, 1);
  let_go_.Notify();
  EXPECT_THAT(AwaitAnswers(2), ElementsAre(Pair(1, OutOfMemory()), Pair(2, IsOk())));
}

TEST_F(SideThreadTest, CancelledCallEndsAfterItsStep) {
  const auto cancelled = std::make_shared<std::atomic<bool>>(false);
  StartCall(1, 100, kGreedy, cancelled);
  started_.WaitForNotification();
  cancelled->store(true);
  let_go_.Notify();
  EXPECT_THAT(AwaitAnswers(1),
              ElementsAre(Pair(1, Fails(absl::StatusCode::kCancelled, "request: cancelled"))));
  EXPECT_THAT(Stepped(), ElementsAre(1));
}

TEST_F(SideThreadTest, DrainEndsWhatWasAcceptedAndRefusesTheRest) {
  Block();
  StartCall(1, 3);
  StartRequest(2, 1);
  std::thread drainer([this] { thread_.Drain(); });
  // Tries until the drain has begun: works that are accepted before wait.
  do {
    StartRequest(3, 1);
  } while (AwaitAnswers(0).empty());
  let_go_.Notify();
  drainer.join();
  const Answers answers = AwaitAnswers(4);
  EXPECT_THAT(answers[0], Pair(3, IsUnavailable("draining")));
  EXPECT_THAT(answers, Contains(Pair(1, IsOk())));
  EXPECT_THAT(answers, Contains(Pair(2, IsOk())));
}

TEST_F(SideThreadTest, WhatWaitsAfterTheTimeoutEndsWithAnError) {
  Block();
  StartCall(1, 1);
  thread_.StopWaiting();
  std::thread drainer([this] { thread_.Drain(); });
  let_go_.Notify();
  drainer.join();
  EXPECT_THAT(AwaitAnswers(2), ElementsAre(Pair(0, IsOk()), Pair(1, IsUnavailable("draining"))));
}

}  // namespace
}  // namespace rope::server
