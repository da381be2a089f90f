#include "server/control/step_worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <new>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "proto/mutex.h"
#include "server/error.h"
#include "server/limits.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::IsOk;
using ::rope::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Jobs whose first step waits until the test lets them go on.
class StepWorkerTest : public ::testing::Test {
 protected:
  class Counted final : public StepWorker::Job {
   public:
    Counted(StepWorkerTest& test, int name, int steps) : test_(test), name_(name), left_(steps) {}

    absl::StatusOr<bool> Step() override {
      if (!test_.started_.HasBeenNotified()) test_.started_.Notify();
      test_.let_go_.WaitForNotification();
      proto::MutexLock lock(&test_.mutex_);
      test_.stepped_.push_back(name_);
      if (left_ == 0) return absl::InternalError("broken");
      if (left_ < 0) std::rethrow_exception(std::make_exception_ptr(std::bad_alloc()));
      return --left_ == 0;
    }
    void Done(const absl::Status& status) override {
      proto::MutexLock lock(&test_.mutex_);
      test_.answers_.push_back(status);
      test_.answered_.SignalAll();
    }

   private:
    StepWorkerTest& test_;
    const int name_;
    int left_;
  };

  ~StepWorkerTest() override {
    if (!let_go_.HasBeenNotified()) let_go_.Notify();
  }

  // Each job belongs to a new session, unless `session` names one.
  absl::Status Start(int name, int steps, StepWorker::Cancelled cancelled = nullptr,
                     std::optional<uint64_t> session = std::nullopt) {
    std::unique_ptr<StepWorker::Job> job = std::make_unique<Counted>(*this, name, steps);
    const absl::Status status =
        worker_.Start(job, session.value_or(++last_session_), std::move(cancelled));
    EXPECT_EQ(job == nullptr, status.ok());
    return status;
  }
  std::vector<absl::Status> AwaitAnswers(size_t count) {
    proto::MutexLock lock(&mutex_);
    while (answers_.size() < count) answered_.Wait(&mutex_);
    return answers_;
  }
  std::vector<int> Stepped() {
    proto::MutexLock lock(&mutex_);
    return stepped_;
  }

  uint64_t last_session_ = 1000;
  proto::Notification started_;
  proto::Notification let_go_;
  proto::Mutex mutex_;
  proto::CondVar answered_;
  std::vector<absl::Status> answers_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> stepped_ ABSL_GUARDED_BY(mutex_);
  StepWorker worker_;
};

TEST_F(StepWorkerTest, JobsTakeTurnsSoThatAShortOneIsDoneEarly) {
  ASSERT_THAT(Start(1, 3), IsOk());
  started_.WaitForNotification();
  ASSERT_THAT(Start(2, 1), IsOk());
  ASSERT_THAT(Start(3, 2), IsOk());
  let_go_.Notify();
  for (const absl::Status& answer : AwaitAnswers(3)) EXPECT_THAT(answer, IsOk());
  EXPECT_THAT(Stepped(), ElementsAre(1, 2, 3, 1, 3, 1));
}

TEST_F(StepWorkerTest, FullQueueIsRetriedLater) {
  ASSERT_THAT(Start(0, 1), IsOk());
  started_.WaitForNotification();
  for (int i = 0; i < limits::kControlJobsMax; ++i) ASSERT_THAT(Start(i, 1), IsOk());
  const absl::Status refused = Start(99, 1);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted,
                                HasSubstr("queue: got call number 17 that takes long, want at "
                                          "most 16 at a time")));
  EXPECT_GT(proto::PartsOf(refused).retry_delay_ms, 0);
  let_go_.Notify();
  AwaitAnswers(static_cast<size_t>(limits::kControlJobsMax) + 1);
}

TEST_F(StepWorkerTest, OneSessionGetsHalfOfThePlaces) {
  constexpr uint64_t kGreedy = 7;
  ASSERT_THAT(Start(0, 2, nullptr, kGreedy), IsOk());
  started_.WaitForNotification();  // the job in its step counts too
  for (int i = 1; i < limits::kSessionsControlJobsMax; ++i) {
    ASSERT_THAT(Start(i, 1, nullptr, kGreedy), IsOk());
  }
  const absl::Status refused = Start(99, 1, nullptr, kGreedy);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted,
                                HasSubstr("queue: got call number 9 of this connection that takes "
                                          "long, want at most 8 at a time")));
  EXPECT_GT(proto::PartsOf(refused).retry_delay_ms, 0);
  EXPECT_THAT(Start(100, 1), IsOk()) << "another session has its own places";
  let_go_.Notify();
  AwaitAnswers(static_cast<size_t>(limits::kSessionsControlJobsMax) + 1);
}

TEST_F(StepWorkerTest, FailedStepIsTheAnswer) {
  ASSERT_THAT(Start(1, 0), IsOk());
  let_go_.Notify();
  EXPECT_THAT(AwaitAnswers(1)[0], StatusIs(absl::StatusCode::kInternal, HasSubstr("broken")));
}

TEST_F(StepWorkerTest, StepWithoutMemoryEndsItsJobOnly) {
  ASSERT_THAT(Start(1, -1), IsOk());
  ASSERT_THAT(Start(2, 1), IsOk());
  let_go_.Notify();
  const std::vector<absl::Status> answers = AwaitAnswers(2);
  EXPECT_EQ(answers[0], OutOfMemory());
  EXPECT_THAT(answers[1], IsOk());
}

TEST_F(StepWorkerTest, CancelledJobEndsAfterItsStep) {
  const auto cancelled = std::make_shared<std::atomic<bool>>(false);
  ASSERT_THAT(Start(1, 100, cancelled), IsOk());
  started_.WaitForNotification();
  cancelled->store(true);
  let_go_.Notify();
  EXPECT_THAT(AwaitAnswers(1)[0],
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("request: cancelled")));
  EXPECT_THAT(Stepped(), ElementsAre(1));
}

TEST_F(StepWorkerTest, DrainAnswersAllAndRefusesNewOnes) {
  ASSERT_THAT(Start(1, 2), IsOk());
  started_.WaitForNotification();
  ASSERT_THAT(Start(2, 1), IsOk());
  std::thread drainer([this] { worker_.Drain(); });
  // Retries until the drain has begun; before that, a full queue may refuse as well.
  while (Start(3, 1).code() != absl::StatusCode::kUnavailable) std::this_thread::yield();
  let_go_.Notify();
  drainer.join();
  for (const absl::Status& answer : AwaitAnswers(2)) {
    EXPECT_THAT(answer, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("draining")));
  }
}

}  // namespace
}  // namespace rope::server
