#include "server/control/jobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <memory>
#include <new>
#include <vector>

#include "server/error.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::IsOk;
using ::rope::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using JobPtr = std::unique_ptr<StepWorker::Job>;

class JobsTest : public ::testing::Test {
 protected:
  JobDone<int> Done() {
    return [this](const absl::StatusOr<int>& answer) { answers_.push_back(answer); };
  }
  // Counts its steps, of which it has two.
  JobPtr TwoSteps() {
    class Counted final : public StepWorker::Job {
     public:
      explicit Counted(JobsTest& test) : test_(test) {}
      absl::StatusOr<bool> Step() override { return ++test_.steps_ == 2; }
      void Done(const absl::Status& status) override {
        if (!status.ok()) return test_.Done()(status);
        test_.Done()(test_.steps_);
      }

     private:
      JobsTest& test_;
    };
    return std::make_unique<Counted>(*this);
  }

  std::vector<absl::StatusOr<int>> answers_;
  int steps_ = 0;
};

TEST_F(JobsTest, AnswerJobComputesInItsStepAndAnswersWhenItIsDone) {
  AnswerJob<int> job([] { return 7; }, Done());
  EXPECT_TRUE(job.Step().value());
  EXPECT_THAT(answers_, IsEmpty());
  job.Done(absl::OkStatus());
  ASSERT_EQ(answers_.size(), 1);
  EXPECT_EQ(answers_[0].value(), 7);
}

TEST_F(JobsTest, AnswerJobPassesErrorsOn) {
  AnswerJob<int> failing([] { return absl::InternalError("broken"); }, Done());
  EXPECT_TRUE(failing.Step().value());
  failing.Done(absl::OkStatus());
  AnswerJob<int> cancelled([] { return 7; }, Done());
  cancelled.Done(absl::CancelledError("gone"));
  ASSERT_EQ(answers_.size(), 2);
  EXPECT_THAT(answers_[0], StatusIs(absl::StatusCode::kInternal, HasSubstr("broken")));
  EXPECT_THAT(answers_[1], StatusIs(absl::StatusCode::kCancelled, HasSubstr("gone")));
}

TEST_F(JobsTest, PlannedJobIsTheJobOfItsPlanAfterItsFirstStep) {
  PlannedJob<int> job([this]() -> absl::StatusOr<JobPtr> { return TwoSteps(); }, Done());
  EXPECT_FALSE(job.Step().value());
  EXPECT_EQ(steps_, 0);
  EXPECT_FALSE(job.Step().value());
  EXPECT_TRUE(job.Step().value());
  job.Done(absl::OkStatus());
  ASSERT_EQ(answers_.size(), 1);
  EXPECT_EQ(answers_[0].value(), 2);
}

TEST_F(JobsTest, PlanThatFailsIsTheAnswer) {
  PlannedJob<int> job([]() -> absl::StatusOr<JobPtr> { return absl::InternalError("no plan"); },
                      Done());
  const absl::StatusOr<bool> finished = job.Step();
  EXPECT_THAT(finished, StatusIs(absl::StatusCode::kInternal, HasSubstr("no plan")));
  job.Done(finished.status());
  ASSERT_EQ(answers_.size(), 1);
  EXPECT_THAT(answers_[0], StatusIs(absl::StatusCode::kInternal, HasSubstr("no plan")));
}

TEST_F(JobsTest, RunHereRunsAllStepsAndReportsMemoryThatIsNotThere) {
  const JobPtr job = TwoSteps();
  StepWorker::RunHere(*job);
  ASSERT_EQ(answers_.size(), 1);
  EXPECT_EQ(answers_[0].value(), 2);
  AnswerJob<int> greedy(
      []() -> absl::StatusOr<int> {
        std::rethrow_exception(std::make_exception_ptr(std::bad_alloc()));
      },
      Done());
  StepWorker::RunHere(greedy);
  ASSERT_EQ(answers_.size(), 2);
  EXPECT_EQ(answers_[1].status(), OutOfMemory());
}

}  // namespace
}  // namespace rope::server
