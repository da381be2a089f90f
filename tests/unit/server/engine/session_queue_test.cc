#include "server/engine/session_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "proto/mutex.h"
#include "tests/support/fake_clock.h"
#include "tests/support/matchers.h"

namespace rope::server {
namespace {

std::vector<std::string> PopAll(SessionQueue<std::string>& queue) {
  std::vector<std::string> popped;
  while (!queue.empty()) popped.push_back(queue.Pop());
  return popped;
}

// Session 1 has the entries a1, a2 and a3; session 2 has b1 and b2.
SessionQueue<std::string> TwoSessions() {
  SessionQueue<std::string> queue;
  for (const char* entry : {"a1", "a2", "a3"}) queue.Push(1, entry);
  for (const char* entry : {"b1", "b2"}) queue.Push(2, entry);
  return queue;
}

TEST(SessionQueueTest, SessionsTakeTurns) {
  SessionQueue<std::string> queue = TwoSessions();
  EXPECT_THAT(PopAll(queue), ElementsAre("a1", "b1", "a2", "b2", "a3"));
}

TEST(SessionQueueTest, ReturnedEntryWaitsForTheOtherSession) {
  SessionQueue<std::string> queue = TwoSessions();
  queue.Push(1, queue.Pop());
  EXPECT_THAT(PopAll(queue), ElementsAre("b1", "a2", "b2", "a3", "a1"));
}

class DrainStateTest : public ::testing::Test {
 protected:
  // Counts how often it is asked: by Await before each wait.
  class CountingClock final : public Clock {
   public:
    absl::Time Now() const override {
      ++asked;
      return absl::UnixEpoch();
    }
    mutable std::atomic<int> asked = 0;
  };

  void Await(absl::Duration timeout) {
    proto::MutexLock lock(&mutex_);
    drain_.Await(&mutex_, clock_, absl::UnixEpoch() + timeout);
  }

  CountingClock clock_;
  proto::Mutex mutex_;
  DrainState drain_;
};

TEST_F(DrainStateTest, WakingUpWithoutAReasonEndsNoWait) {
  for (const absl::Duration timeout : {absl::Hours(1), absl::InfiniteDuration()}) {
    clock_.asked = 0;
    drain_.ended = false;
    std::atomic<bool> returned = false;
    std::thread waiter([&] {
      Await(timeout);
      returned = true;
    });
    while (clock_.asked < 3 && !returned) drain_.changed.SignalAll();
    {
      proto::MutexLock lock(&mutex_);
      EXPECT_FALSE(drain_.abandoned);
      drain_.End();
    }
    waiter.join();
    EXPECT_GE(clock_.asked, 3);
    EXPECT_FALSE(drain_.abandoned);
  }
}

TEST_F(DrainStateTest, QueuesAreAbandonedWhenTheTimeIsUp) {
  Await(absl::ZeroDuration());
  EXPECT_TRUE(drain_.abandoned);
}

TEST_F(DrainStateTest, NothingIsAwaitedOfQueuesThatAreAbandoned) {
  drain_.Abandon();
  Await(absl::InfiniteDuration());
  EXPECT_FALSE(drain_.ended);
}

}  // namespace
}  // namespace rope::server
