#include "server/ipc/ring_loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/support/raw_ring.h"
#include "tests/support/status_matchers.h"

namespace rope::server {
namespace {

using ::rope::testing::RawRing;

void Echo(RingCall& call) {
  call.Answer(absl::StatusCode::kOk, absl::StrCat(call.session(), " ", call.CopyMessage()));
}

class RingLoopTest : public ::testing::Test {
 protected:
  void Start(absl::Duration spin = absl::ZeroDuration(), Ring::Handler handler = Echo) {
    auto loop = RingLoop::Create(clock_, spin, std::move(handler), [this] {
      idle_looks_.fetch_add(1);
      return false;
    });
    ASSERT_THAT(loop, IsOk());
    loop_ = *std::move(loop);
  }

  absl::StatusOr<proto::FileDescriptor> TryOpen(const RawRing& client, uint64_t number) {
    auto memory = Ring::MapMemory(client.memory().Dup(), client.memory().bytes());
    EXPECT_THAT(memory, IsOk());
    return loop_->Open(/*token=*/1000 + number, /*session=*/number, *std::move(memory));
  }
  void Open(RawRing& client, uint64_t number) {
    auto doorbell = TryOpen(client, number);
    ASSERT_THAT(doorbell, IsOk());
    client.set_doorbell(*std::move(doorbell));
  }
  void Close(uint64_t number) { loop_->Close(1000 + number); }

  // Whether a request through each slot in turn comes back with its own answer.
  static bool Echoes(const RawRing& client, uint64_t number, int times = 1) {
    for (int i = 0; i < times; ++i) {
      const uint32_t slot = static_cast<uint32_t>(i) % proto::kRingSlots;
      client.Send(slot, absl::StrCat(i));
      if (!client.Await(slot)) return false;
      if (client.MessageIn(slot) != absl::StrCat(number, " ", i)) return false;
    }
    return true;
  }

  const SteadyClock clock_{};
  RawRing a_{RawRing::kForEver};
  RawRing b_{RawRing::kForEver};
  std::atomic<int> idle_looks_ = 0;  // calls of on_idle
  std::unique_ptr<RingLoop> loop_;
};

TEST_F(RingLoopTest, IdleWorkIsAskedForOnceAndNotByEveryLookOfTheSpinTime) {
  constexpr int kRounds = 200;
  constexpr int kWakesOfOpen = 4;
  Start(absl::Hours(1));
  Open(a_, 1);
  ASSERT_TRUE(Echoes(a_, 1, kRounds));
  EXPECT_LE(idle_looks_.load(), kRounds + kWakesOfOpen);
}

TEST_F(RingLoopTest, NoWakeUpIsLostWhereBothSidesSleepAtOnce) {
  Start();
  Open(a_, 1);
  EXPECT_TRUE(Echoes(a_, 1, 5000));
}

TEST_F(RingLoopTest, NoWakeUpIsLostWhereTheLoopPollsForAWhile) {
  Start(absl::Microseconds(20));  // about as long as a round takes: now it sleeps, now it does not
  Open(a_, 1);
  EXPECT_TRUE(Echoes(a_, 1, 5000));
}

TEST_F(RingLoopTest, NoDoorbellIsMissedWhileTheLoopFallsAsleep) {
  Start();
  Open(a_, 1);
  for (int i = 0; i < 30'000; ++i) {
    a_.Send(0, "x");
    while (!a_.IsDone(0)) std::this_thread::yield();
    for (int pause = i % 300; pause > 0 && !a_.IsClosed(); --pause) {
    }
  }
}

TEST_F(RingLoopTest, BusyRingDelaysNoCompletionOfAnother) {
  std::atomic<bool> stop = false;
  Start(absl::ZeroDuration(), [&](RingCall& call) {
    const bool busy = call.session() == 2 && !stop.load();
    Echo(call);
    if (busy) b_.Send(0, "again");
  });
  Open(a_, 1);
  Open(b_, 2);
  b_.Send(0, "once");
  for (uint32_t i = 1; i <= 20; ++i) {
    a_.Write(3, "x");
    a_.slot(3).state.store(ValueOf(proto::RingState::kQueued));
    std::atomic<uint32_t>& asleep = a_.shared().reader_asleep;
    asleep.store(1);
    a_.Submit(3);
    while (asleep.load() != 0) std::this_thread::yield();
    EXPECT_EQ(a_.shared().completed.load(), i);
    EXPECT_EQ(a_.shared().completions[(i - 1) % proto::kRingSlots].load(), 3u);
    EXPECT_TRUE(a_.IsDone(3));
  }
  stop = true;
  loop_->Stop();
}

TEST_F(RingLoopTest, RingsAreServedSideBySide) {
  Start();
  Open(a_, 1);
  Open(b_, 2);
  EXPECT_EQ(loop_->count(), 2);
  bool other = false;
  std::thread thread([&] { other = Echoes(b_, 2, 2000); });
  EXPECT_TRUE(Echoes(a_, 1, 2000));
  thread.join();
  EXPECT_TRUE(other);
}

TEST_F(RingLoopTest, RingsComeAndGoWhileOthersAreServed) {
  Start();
  Open(a_, 1);
  bool other = false;
  std::thread thread([&] { other = Echoes(a_, 1, 3000); });
  for (uint64_t i = 0; i < 200; ++i) {
    RawRing guest(RawRing::kForEver);
    Open(guest, 10 + i);
    EXPECT_TRUE(Echoes(guest, 10 + i));
    Close(10 + i);
    EXPECT_TRUE(guest.IsClosed());
  }
  thread.join();
  EXPECT_TRUE(other);
  EXPECT_EQ(loop_->count(), 1);
}

TEST_F(RingLoopTest, WhatWasSubmittedBeforeItWasOpenedIsServed) {
  Start();
  a_.Send(0, "early");
  Open(a_, 1);
  ASSERT_TRUE(a_.Await(0));
  EXPECT_EQ(a_.MessageIn(0), "1 early");
}

TEST_F(RingLoopTest, CloseEndsOneRingAndNotTheOther) {
  Start();
  Open(a_, 1);
  Open(b_, 2);
  ASSERT_TRUE(Echoes(a_, 1));
  Close(1);
  Close(1);
  Close(3);  // nobody's
  EXPECT_EQ(loop_->count(), 1);
  EXPECT_TRUE(a_.IsClosed());
  EXPECT_TRUE(Echoes(b_, 2, 2));  // the loop has heard of it by the second
  a_.Send(5, "late");
  a_.RingDoorbell();
  EXPECT_TRUE(Echoes(b_, 2, 2));
  EXPECT_EQ(a_.slot(5).state.load(), ValueOf(proto::RingState::kSubmitted)) << "it was read";
}

TEST_F(RingLoopTest, RingThatBreaksTheRulesIsClosedAndOthersGoOn) {
  Start();
  Open(a_, 1);
  Open(b_, 2);
  a_.Submit(proto::kRingSlots);
  a_.AwaitClosed();
  EXPECT_EQ(loop_->count(), 1);
  EXPECT_TRUE(Echoes(b_, 2, 10));
  Close(1);  // as its connection ends
  EXPECT_EQ(loop_->count(), 1);
}

TEST_F(RingLoopTest, StopServesWhatWasSubmittedBeforeAndClosesAll) {
  for (uint64_t round = 1; round <= 50; ++round) {
    const RawRing idle;
    RawRing busy(RawRing::kForEver);
    Start();
    Open(busy, round);
    ASSERT_THAT(TryOpen(idle, 100), IsOk());
    for (uint32_t i = 0; i < proto::kRingSlots; ++i) busy.Send(i, "x");
    loop_->Stop();
    for (uint32_t i = 0; i < proto::kRingSlots; ++i) ASSERT_TRUE(busy.IsDone(i)) << i;
    EXPECT_TRUE(busy.IsClosed());
    EXPECT_TRUE(idle.IsClosed());
  }
}

TEST_F(RingLoopTest, StopDoesNotWaitForAClientThatGoesOnAndOn) {
  Start(absl::ZeroDuration(), [this](RingCall& call) {
    call.Answer(absl::StatusCode::kUnavailable, {});
    a_.Send(0, "again");
  });
  Open(a_, 1);
  a_.Send(0, "once");
  while (a_.shared().submitted.load() < 3) std::this_thread::yield();
  loop_->Stop();
  EXPECT_TRUE(a_.IsClosed());
}

TEST_F(RingLoopTest, RingThatComesAfterStopIsRefused) {
  Start();
  loop_->Stop();
  EXPECT_THAT(TryOpen(a_, 1), IsUnavailable("server ends"));
  loop_->Stop();  // again, as the destructor does
}

}  // namespace
}  // namespace rope::server
