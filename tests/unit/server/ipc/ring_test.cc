#include "server/ipc/ring.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/raw_ring.h"
#include "tests/support/shared_memory.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_clients.h"

namespace rope::server {
namespace {

using ::rope::testing::RawRing;
using ::rope::testing::SharedMemory;

constexpr uint64_t kSession = 77;

// A thread that waits for the answer in a slot.
class Sleeper {
 public:
  Sleeper(const RawRing& client, uint32_t index)
      : thread_([this, &client, index] {
          id_ = gettid();
          answered_ = client.Await(index);
        }) {}
  ~Sleeper() { thread_.join(); }

  // Returns when the system says that the thread sleeps: it sleeps nowhere else.
  void AwaitAsleep() const {
    while (StateOf(id_.load()) != "S") std::this_thread::yield();
  }
  // Returns when it has woken.
  bool Answered() {
    thread_.join();
    thread_ = std::thread([] {});
    return answered_;
  }

 private:
  static std::string StateOf(pid_t id) {
    std::ifstream file(absl::StrCat("/proc/self/task/", id, "/status"));
    std::string word;
    while (file >> word && word != "State:") {
    }
    file >> word;
    return word;
  }

  std::atomic<pid_t> id_ = 0;
  bool answered_ = false;
  std::thread thread_;
};

class RingTest : public ::testing::Test {
 protected:
  RingTest() {
    auto memory = Ring::MapMemory(client_.memory().Dup(), client_.memory().bytes());
    EXPECT_THAT(memory, IsOk());
    ring_ = std::make_shared<Ring>(clients_.Of(kSession).shared_from_this(), *std::move(memory));
  }

  // Notes what is handed on, and answers nothing.
  Ring::ServeResult Serve() {
    return ring_->Serve([this](RingCall& call) {
      calls_.push_back(&call);
      messages_.push_back(call.CopyMessage());
    });
  }
  absl::Duration TimeLeft(size_t call) const { return calls_[call]->time_left(); }

  testing::TestClients clients_;
  RawRing client_{RawRing::kForEver};
  std::shared_ptr<Ring> ring_;
  std::vector<RingCall*> calls_;
  std::vector<std::string> messages_;
};

TEST_F(RingTest, DeadlineIsTheTimeoutFromNowWithinADay) {
  constexpr int64_t kTimeouts[] = {0, 1500, -1, std::numeric_limits<int64_t>::min(),
                                   std::numeric_limits<int64_t>::max()};
  for (uint32_t i = 0; i < 5; ++i) {
    client_.Write(i, "x", kTimeouts[i]);
    client_.Submit(i);
  }
  ASSERT_EQ(Serve(), Ring::ServeResult::kSome);
  EXPECT_EQ(TimeLeft(0), absl::ZeroDuration());
  EXPECT_EQ(TimeLeft(1), absl::Microseconds(1500));
  EXPECT_EQ(TimeLeft(2), absl::ZeroDuration());
  EXPECT_EQ(TimeLeft(3), absl::ZeroDuration());
  EXPECT_EQ(TimeLeft(4), absl::Hours(24));
  for (RingCall* const call : calls_) call->Answer(absl::StatusCode::kOk, {});
}

TEST_F(RingTest, AnswerWakesWhoSleepsOnTheSlot) {
  client_.Send(1, "x");
  ASSERT_EQ(Serve(), Ring::ServeResult::kSome);
  Sleeper sleeper(client_, 1);
  sleeper.AwaitAsleep();
  calls_[0]->Answer(absl::StatusCode::kOk, {});
  EXPECT_TRUE(sleeper.Answered());
}

TEST_F(RingTest, CompletionsAreCountedAndTheirReaderIsWokenAtTheNextIdleLook) {
  for (const uint32_t slot : {9u, 4u}) {
    client_.Write(slot, "x");
    client_.slot(slot).state.store(ValueOf(proto::RingState::kQueued));
    client_.Submit(slot);
  }
  client_.Send(1, "not watched");
  client_.shared().reader_asleep.store(1);
  ring_->Serve([](RingCall& call) { call.Answer(absl::StatusCode::kOk, {}); });
  EXPECT_EQ(client_.shared().completed.load(), 2u);
  EXPECT_EQ(client_.shared().completions[0].load(), 9u);
  EXPECT_EQ(client_.shared().completions[1].load(), 4u);
  Serve();
  EXPECT_EQ(client_.shared().reader_asleep.load(), 0u);
}

TEST_F(RingTest, CompletionByAnotherThreadWakesTheReaderAtOnce) {
  client_.Write(9, "x");
  client_.slot(9).state.store(ValueOf(proto::RingState::kQueued));
  client_.Submit(9);
  client_.shared().reader_asleep.store(1);
  ASSERT_EQ(Serve(), Ring::ServeResult::kSome);
  std::thread([this] { calls_[0]->Answer(absl::StatusCode::kOk, {}); }).join();
  EXPECT_EQ(client_.shared().completed.load(), 1u);
  EXPECT_EQ(client_.shared().reader_asleep.load(), 0u);
}

TEST_F(RingTest, AllSlotsAreServedAtOnceAgainAndAgain) {
  for (int round = 0; round < 3; ++round) {
    for (uint32_t i = 0; i < proto::kRingSlots; ++i) client_.Send(i, absl::StrCat(i));
    calls_.clear();
    for (uint32_t had = 0; had < proto::kRingSlots; had += Ring::kServedAtOnce) {
      ASSERT_EQ(Serve(), Ring::ServeResult::kSome);
      ASSERT_THAT(calls_, SizeIs(had + Ring::kServedAtOnce)) << "others have their turn";
    }
    for (RingCall* const call : calls_) call->Answer(absl::StatusCode::kOk, {});
  }
}

// Answers, and what breaks the rules: RingFuzzTest, which knows what each ring holds.

TEST_F(RingTest, CloseTellsTheClientCancelsAndWakes) {
  client_.Send(1, "x");
  ASSERT_EQ(Serve(), Ring::ServeResult::kSome);
  EXPECT_FALSE(calls_[0]->cancelled()->load());
  Sleeper sleeper(client_, 1);
  sleeper.AwaitAsleep();
  ring_->Close();
  EXPECT_FALSE(sleeper.Answered());
  EXPECT_EQ(client_.shared().closed.load(), 1u);
  EXPECT_TRUE(calls_[0]->cancelled()->load());
  calls_[0]->Answer(absl::StatusCode::kCancelled, {});
}

TEST_F(RingTest, CallsHoldTheirRingUntilTheyAreAnswered) {
  client_.Send(1, "x");
  client_.Send(2, "y");
  ASSERT_EQ(Serve(), Ring::ServeResult::kSome);
  ring_->Close();
  const std::weak_ptr<Ring> ring = std::exchange(ring_, nullptr);
  calls_[0]->Answer(absl::StatusCode::kOk, "first");
  EXPECT_FALSE(ring.expired());
  calls_[1]->Answer(absl::StatusCode::kCancelled, "second");
  EXPECT_TRUE(ring.expired());
  EXPECT_EQ(client_.MessageIn(1), "first");
  EXPECT_EQ(client_.MessageIn(2), "second");
  EXPECT_EQ(client_.CodeIn(2), 1u);
}

TEST_F(RingTest, AsleepIsWhatTheClientReads) {
  ring_->SetAsleep(true);
  EXPECT_EQ(client_.shared().asleep.load(), 1u);
  ring_->SetAsleep(false);
  EXPECT_EQ(client_.shared().asleep.load(), 0u);
}

TEST(RingMemoryTest, FileThatIsSmallerThanItSaysIsRefused) {
  const SharedMemory memory = SharedMemory::Memfd(4096);
  EXPECT_THAT(Ring::MapMemory(memory.Dup(), sizeof(proto::Ring)), IsPrecondition("got"));
}

using ::rope::testing::RawRing;

void Echo(RingCall& call) {
  call.Answer(absl::StatusCode::kOk, absl::StrCat(call.connection().id(), " ", call.CopyMessage()));
}

class RingLoopTest : public ::testing::Test {
 protected:
  void Start(absl::Duration spin = absl::ZeroDuration(), Ring::Handler handler = Echo) {
    auto loop = RingLoop::Create(spin, std::move(handler), [this] {
      idle_looks_.fetch_add(1);
      return false;
    });
    ASSERT_THAT(loop, IsOk());
    loop_ = *std::move(loop);
  }

  absl::StatusOr<proto::FileDescriptor> TryOpen(const RawRing& client, uint64_t number) {
    return loop_->Open(clients_.Of(number).shared_from_this(), client.memory().Dup(),
                       client.memory().bytes());
  }
  void Open(RawRing& client, uint64_t number) {
    auto doorbell = TryOpen(client, number);
    ASSERT_THAT(doorbell, IsOk());
    client.set_doorbell(*std::move(doorbell));
  }
  void Close(uint64_t number) { loop_->Close(number); }

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

  testing::TestClients clients_;
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
    const bool busy = call.connection().id() == 2 && !stop.load();
    Echo(call);
    if (busy) b_.Send(1, "again");  // no slot that the test's thread writes
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
