// Jobs of one step, and jobs that are planned by their first step: for calls whose config takes
// longer to read than the thread that received the message may spend.
//
// Threading:  As StepWorker::Job: the functions run on the worker's thread.
// Errors:     Those of the functions, and those of the StepWorker.
#ifndef ROPE_SERVER_CONTROL_JOBS_H_
#define ROPE_SERVER_CONTROL_JOBS_H_

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/status_macros.h"
#include "server/control/step_worker.h"

namespace rope::server {

// Runs once.
template <typename Out>
using JobDone = std::function<void(const absl::StatusOr<Out>&)>;

// Computes the answer in its only step.
template <typename Out>
class AnswerJob final : public StepWorker::Job {
 public:
  using Answer = std::function<absl::StatusOr<Out>()>;
  AnswerJob(Answer answer, JobDone<Out> done)
      : answer_(std::move(answer)), done_(std::move(done)) {}

  absl::StatusOr<bool> Step() override {
    response_ = answer_();
    return true;
  }
  void Done(const absl::Status& status) override {
    if (!status.ok()) return done_(status);
    done_(response_);
  }

 private:
  const Answer answer_;
  const JobDone<Out> done_;
  absl::StatusOr<Out> response_;
};

// Makes another job in its first step and is that job from then on.
template <typename Out>
class PlannedJob final : public StepWorker::Job {
 public:
  // Returns a job that answers through the `done` of the PlannedJob, or an error.
  using Plan = std::function<absl::StatusOr<std::unique_ptr<StepWorker::Job>>()>;
  PlannedJob(Plan plan, JobDone<Out> done) : plan_(std::move(plan)), done_(std::move(done)) {}

  absl::StatusOr<bool> Step() override {
    if (planned_ != nullptr) return planned_->Step();
    ROPE_ASSIGN_OR_RETURN(planned_, plan_());
    plan_ = nullptr;  // frees the request
    return false;
  }
  void Done(const absl::Status& status) override {
    if (planned_ != nullptr) return planned_->Done(status);
    done_(status);
  }

 private:
  Plan plan_;
  const JobDone<Out> done_;
  std::unique_ptr<StepWorker::Job> planned_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_CONTROL_JOBS_H_
