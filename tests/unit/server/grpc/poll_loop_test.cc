#include "server/grpc/poll_loop.h"

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/mutex.h"
#include "tests/support/matchers.h"

namespace rope::server {
namespace {

// A poll loop with one queue, in a server without services, and a log of its thread's actions.
class PollLoopTest : public ::testing::TestWithParam<absl::Duration> {
 protected:
  ~PollLoopTest() override {
    server_->Shutdown();
    loop_->Shutdown();
  }

  void Build(PollLoop::OnIdle on_idle) {
    grpc::ServerBuilder builder;
    loop_ = std::make_unique<PollLoop>(builder, 1, GetParam(), std::move(on_idle));
    server_ = builder.BuildAndStart();
  }

  // Queues an event that appends `text` to the log. It is in the queue when this returns.
  void Post(const std::string& text) {
    Posted& posted = posted_.emplace_back(*this, text);
    posted.alarm.Set(&queue().completion_queue(), gpr_inf_past(GPR_CLOCK_MONOTONIC), &posted);
  }

  void Note(const std::string& text) {
    if (ended_.HasBeenNotified()) return;  // the log is read
    log_.push_back(text);
    if (text == "last") ended_.Notify();
    if (text != "event") return;
    if (defers_ && queue().must_look()) {
      queue().Defer(posted_.emplace_back(*this, "last"));
    } else if (endless_) {
      Post("event");
    }
  }

  CallQueue& queue() { return *loop_->queues().front(); }

  std::vector<std::string> Log() {
    loop_->Start();
    ended_.WaitForNotification();
    return log_;
  }

  // Written by the loop's thread until `ended_`.
  std::vector<std::string> log_;
  int idle_ = 0;
  bool endless_ = false;
  bool defers_ = false;

 private:
  struct Posted : Event {
    Posted(PollLoopTest& the_test, std::string the_text)
        : test(the_test), text(std::move(the_text)) {}
    void Run(bool) override { test.Note(text); }
    PollLoopTest& test;
    const std::string text;
    grpc::Alarm alarm;
  };

  proto::Notification ended_;
  std::list<Posted> posted_;
  std::unique_ptr<PollLoop> loop_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_P(PollLoopTest, ThreadIsIdleWhenNoEventIsLeft) {
  Build([this] {
    if (log_.size() == 2) Note("last");
    return false;
  });
  Post("a");
  Post("b");
  EXPECT_THAT(Log(), ElementsAre("a", "b", "last"));
}

TEST_P(PollLoopTest, ThreadLooksForEventsAgainAfterWhatItDidWhenIdle) {
  Build([this] {
    if (++idle_ > 2) return false;
    Note("idle");
    Post(idle_ == 2 ? "last" : "made when idle");
    return true;
  });
  EXPECT_THAT(Log(), ElementsAre("idle", "made when idle", "idle", "last"));
}

// An event that queues the next one before it ends, so that the queue is never empty.
TEST_P(PollLoopTest, ThreadThatAlwaysHasEventsDoesTheRestToo) {
  Build([this] {
    if (idle_++ == 0) Note("last");
    return false;
  });
  endless_ = true;
  Post("event");
  EXPECT_EQ(Log().back(), "last");
}

TEST_P(PollLoopTest, WhatIsDeferredRunsOnceTheQueueIsEmpty) {
  Build([] { return false; });
  endless_ = true;
  defers_ = true;
  Post("event");
  EXPECT_THAT(Log(), SizeIs(CallQueue::kEventsMax + 1));
}

INSTANTIATE_TEST_SUITE_P(Spin, PollLoopTest,
                         ::testing::Values(absl::ZeroDuration(), absl::Microseconds(200)),
                         [](const auto& param) {
                           return param.param == absl::ZeroDuration() ? "none" : "bounded";
                         });

}  // namespace
}  // namespace rope::server
