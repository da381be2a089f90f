// How a wait for the end of queues ends. That sessions take turns is proved by
// engine_simulation_test.cc.
#include "server/engine/session_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "proto/mutex.h"
#include "server/clock.h"

namespace rope::server {
namespace {

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

TEST_F(DrainStateTest, OnlyAReasonEndsAWait) {
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
  drain_.ended = false;
  Await(absl::ZeroDuration());
  EXPECT_TRUE(drain_.abandoned) << "the time is up";
  Await(absl::InfiniteDuration());  // nothing is awaited of queues that are abandoned
  EXPECT_FALSE(drain_.ended);
}

}  // namespace
}  // namespace rope::server
