#include "client/transport/ring_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "client/calls/event_loop.h"
#include "tests/unit/client/transport/ring_server.h"

namespace rope::client {
namespace {

using std::chrono::hours;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Keeps what it is told.
class Recorder final : public RingWatch::Waiting {
 public:
  explicit Recorder(const EventQueue& queue) : queue_(queue) {}

  void OnAnswer(uint64_t number, Result<ReceivedReply> reply) override {
    EXPECT_TRUE(queue_.OnThread());
    const std::lock_guard<std::mutex> lock(mu_);
    answers_.emplace_back(number, reply.ok() ? reply->request_id() : reply.status().ToString());
    changed_.notify_all();
  }
  void OnLost() override {
    const std::lock_guard<std::mutex> lock(mu_);
    ++lost_;
    changed_.notify_all();
  }

  using Answers = std::vector<std::pair<uint64_t, std::string>>;
  // Once there are so many.
  Answers AwaitAnswers(size_t count) {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [&] { return answers_.size() >= count; });
    return answers_;
  }
  void AwaitLost(int count) {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [&] { return lost_ >= count; });
  }

 private:
  const EventQueue& queue_;
  std::mutex mu_;
  std::condition_variable changed_;
  Answers answers_;  // guarded by mu_
  int lost_ = 0;     // guarded by mu_
};

class RingWatchTest : public ::testing::Test {
 protected:
  // The index of the slot.
  uint32_t Submit(uint64_t number, const std::shared_ptr<Recorder>& waiting) {
    EXPECT_TRUE(watch_->Submit("request", hours(1), waiting, number));
    return server_.Next();
  }
  std::shared_ptr<Recorder> Recorded() const { return std::make_shared<Recorder>(*loop_.queue()); }

  const std::shared_ptr<Ring> ring_ = Ring::Create(std::chrono::microseconds(0)).value();
  RingServer server_{*ring_};
  EventLoop loop_;
  const std::shared_ptr<RingWatch> watch_ = loop_.queue()->WatchOf(ring_);
};

TEST_F(RingWatchTest, AnswersComeOnTheQueuesThreadsInTheOrderInWhichTheyAreGiven) {
  const auto waiting = Recorded();
  const uint32_t first = Submit(7, waiting);
  const uint32_t second = Submit(8, waiting);
  EXPECT_EQ(server_.slot(first).timeout_us.load(), std::chrono::microseconds(hours(1)).count());
  server_.RespondWatched(second, "second");
  server_.RespondWatched(first, "first");
  EXPECT_THAT(waiting->AwaitAnswers(2), ElementsAre(std::pair(8, "second"), std::pair(7, "first")));
}

TEST_F(RingWatchTest, SleepingThreadIsWokenByEachAnswer) {
  const auto waiting = Recorded();
  for (uint64_t i = 0; i < 2000; ++i) {
    const uint32_t slot = Submit(i, waiting);
    if (i % 2 == 0) server_.AwaitWatcherAsleep();
    server_.RespondWatched(slot, "answer");
    EXPECT_EQ(waiting->AwaitAnswers(i + 1).back().first, i);
  }
}

TEST_F(RingWatchTest, AnswerThatNobodyWaitsForIsDroppedAndItsSlotUsedAgain) {
  auto gone = Recorded();
  std::vector<uint32_t> slots;
  for (uint32_t i = 0; i < proto::kRingSlots; ++i) slots.push_back(Submit(i, gone));
  EXPECT_FALSE(watch_->Submit("one too many", hours(1), gone, 0));
  gone.reset();
  server_.RespondWatched(slots[5], "late");
  const auto waiting = Recorded();
  while (!watch_->Submit("request", hours(1), waiting, 9)) std::this_thread::yield();
  const uint32_t slot = server_.Next();
  EXPECT_EQ(slot, slots[5]);
  server_.RespondWatched(slot, "in time");
  EXPECT_THAT(waiting->AwaitAnswers(1), ElementsAre(std::pair(9, "in time")));
}

TEST_F(RingWatchTest, WhatIsGivenUpNeedNotRun) {
  const auto one = Recorded();
  const auto other = Recorded();
  const uint32_t given_up = Submit(1, one);
  const uint32_t kept = Submit(2, other);
  watch_->GiveUp(*one);
  EXPECT_EQ(server_.slot(given_up).timeout_us.load(), 0);
  EXPECT_NE(server_.slot(kept).timeout_us.load(), 0);
}

TEST_F(RingWatchTest, LostRingIsToldToEachRequestThatIsNotAnswered) {
  const auto waiting = Recorded();
  const uint32_t answered = Submit(1, waiting);
  Submit(2, waiting);
  Submit(3, waiting);
  server_.RespondWatched(answered, "answer");
  server_.shared().closed.store(1);
  server_.WakeWatcher();
  waiting->AwaitLost(2);
  EXPECT_THAT(waiting->AwaitAnswers(1), ElementsAre(std::pair(1, "answer")));
  EXPECT_FALSE(watch_->Submit("request", hours(1), waiting, 4));
}

TEST_F(RingWatchTest, OneWatchServesARingUntilItIsLost) {
  EXPECT_EQ(loop_.queue()->WatchOf(ring_), watch_);
  const auto waiting = Recorded();
  Submit(1, waiting);
  server_.CloseConnection();
  server_.WakeWatcher();
  waiting->AwaitLost(1);
  while (watch_->Watches(*ring_)) std::this_thread::yield();
  EXPECT_THAT(waiting->AwaitAnswers(0), IsEmpty());
}

TEST_F(RingWatchTest, LoopEndsBesideRequestsThatAreNotAnswered) {
  const auto waiting = Recorded();
  EventLoop other;
  const auto ring = std::shared_ptr<Ring>(Ring::Create(std::chrono::microseconds(0)).value());
  RingServer server(*ring);
  EXPECT_TRUE(other.queue()->WatchOf(ring)->Submit("request", hours(1), waiting, 1));
  server.AwaitWatcherAsleep();
}

}  // namespace
}  // namespace rope::client
