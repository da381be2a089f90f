#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "client/transport/ring.h"
#include "tests/support/matchers.h"
#include "tests/unit/client/transport/ring_server.h"

namespace rope::client {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;
using std::chrono::milliseconds;

class RingCompletionsTest : public ::testing::Test {
 protected:
  using Outcomes = std::vector<std::pair<int, std::string>>;  // the request, and its reply or error

  // Submits the request with this name; the index of its slot.
  uint32_t Submit(int name, microseconds timeout = hours(1)) {
    const auto ticket = completions_->Reserve();
    EXPECT_TRUE(ticket.has_value());
    if (!ticket.has_value()) return proto::kRingSlots;
    last_ = *ticket;
    completions_->Submit(*ticket, "request", timeout, OnReply(name));
    return server_.Next();
  }
  RingCompletions::OnReply OnReply(int name) {
    return [this, name](const Result<ReceivedReply>& reply) {
      EXPECT_TRUE(IsCallbackThreadOf(*owner_));
      const std::lock_guard<std::mutex> lock(mu_);
      outcomes_.emplace_back(name, reply.ok() ? reply->request_id() : reply.status().ToString());
      changed_.notify_all();
    };
  }
  Outcomes Await(size_t count) {
    std::unique_lock<std::mutex> lock(mu_);
    changed_.wait(lock, [&] { return outcomes_.size() >= count; });
    return outcomes_;
  }

  const std::shared_ptr<Ring> ring_ = Ring::Create(microseconds(0)).value();
  RingServer server_{*ring_};
  const std::shared_ptr<const CallbackOwner> owner_ = std::make_shared<CallbackOwner>();
  std::mutex mu_;
  std::condition_variable changed_;
  Outcomes outcomes_;  // guarded by mu_
  RingCompletions::Ticket last_;
  // Last: its thread uses all of the above.
  std::unique_ptr<RingCompletions> completions_ = std::make_unique<RingCompletions>(ring_, owner_);
};

TEST_F(RingCompletionsTest, RequestsCompleteInTheOrderInWhichTheyAreAnswered) {
  const uint32_t first = Submit(7);
  const uint32_t second = Submit(8);
  EXPECT_EQ(server_.slot(first).timeout_us.load(), microseconds(hours(1)).count());
  server_.RespondQueued(second, "second");
  server_.RespondQueued(first, "first");
  EXPECT_THAT(Await(2), ElementsAre(std::pair(8, "second"), std::pair(7, "first")));
}

TEST_F(RingCompletionsTest, SleepingThreadIsWokenByEachReply) {
  for (int i = 0; i < 2000; ++i) {
    const uint32_t slot = Submit(i);
    if (i % 2 == 0) server_.AwaitReaderAsleep();
    server_.RespondQueued(slot, "reply");
    EXPECT_EQ(Await(static_cast<size_t>(i) + 1).back().first, i);
  }
}

TEST_F(RingCompletionsTest, AQuarterOfTheSlotsStaysFree) {
  std::vector<uint32_t> slots;
  for (int i = 0; i < RingCompletions::kRequestsMax; ++i) slots.push_back(Submit(i));
  EXPECT_FALSE(completions_->Reserve().has_value());
  EXPECT_TRUE(ring_->Reserve().has_value());
  server_.RespondQueued(slots[5], "reply");
  Await(1);
  EXPECT_EQ(Submit(5), slots[5]);
  for (const uint32_t slot : slots) server_.RespondQueued(slot, "reply");
  Await(slots.size() + 1);
}

TEST_F(RingCompletionsTest, CancelledRequestEndsAtOnceAndNeedNotRun) {
  const uint32_t kept = Submit(1);
  const uint32_t cancelled = Submit(2);
  completions_->Cancel(last_);
  completions_->Cancel(last_);
  EXPECT_THAT(Await(1), ElementsAre(std::pair(2, "CANCELLED: cancelled by the caller")));
  EXPECT_EQ(server_.slot(cancelled).timeout_us.load(), 0);
  EXPECT_NE(server_.slot(kept).timeout_us.load(), 0);
  // Its slot serves others once the server has answered it.
  server_.RespondQueued(cancelled, "too late");
  server_.RespondQueued(kept, "reply");
  EXPECT_THAT(Await(2).back(), std::pair(1, "reply"));
  completions_->Cancel(last_);
  EXPECT_EQ(Submit(3), kept);
  EXPECT_EQ(Submit(4), cancelled);
  server_.RespondQueued(kept, "reply");
  server_.RespondQueued(cancelled, "reply");
  EXPECT_THAT(Await(4), SizeIs(4));
}

TEST_F(RingCompletionsTest, RequestThatIsCancelledBeforeItIsSubmittedEndsToo) {
  const auto ticket = completions_->Reserve();
  ASSERT_TRUE(ticket.has_value());
  completions_->Cancel(*ticket);
  completions_->Submit(*ticket, "request", hours(1), OnReply(1));
  EXPECT_THAT(Await(1), ElementsAre(std::pair(1, "CANCELLED: cancelled by the caller")));
}

TEST_F(RingCompletionsTest, DeadlineEndsARequestThatIsNotAnswered) {
  Submit(1);
  server_.AwaitReaderAsleep();
  Submit(2, milliseconds(20));
  EXPECT_THAT(Await(1), ElementsAre(std::pair(2, "DEADLINE_EXCEEDED: ring: no answer in time")));
}

// Whenever the thread looks, another request is answered: each completion submits one and answers
// it.
class BusyRingCompletionsTest : public RingCompletionsTest {
 protected:
  ~BusyRingCompletionsTest() override {
    ends_ = Clock::now();
    idle_.get_future().wait();
    completions_.reset();  // its thread may still use idle_
  }

  void StartPipeline() { SubmitAnswered(); }
  bool is_busy() const { return Clock::now() < ends_.load(); }

 private:
  using Clock = std::chrono::steady_clock;

  void SubmitAnswered() {
    const auto ticket = completions_->Reserve();
    ASSERT_TRUE(ticket.has_value());
    completions_->Submit(*ticket, "request", hours(1), [this](const Result<ReceivedReply>&) {
      if (is_busy()) return SubmitAnswered();
      idle_.set_value();
    });
    server_.RespondQueued(server_.Next(), "reply");
  }

  std::atomic<Clock::time_point> ends_ = Clock::now() + std::chrono::seconds(10);
  std::promise<void> idle_;
};

TEST_F(BusyRingCompletionsTest, DeadlineEndsARequestWhileOthersAreAnswered) {
  Submit(1, milliseconds(20));
  StartPipeline();
  EXPECT_THAT(Await(1), ElementsAre(std::pair(1, "DEADLINE_EXCEEDED: ring: no answer in time")));
  EXPECT_TRUE(is_busy());
}

TEST_F(BusyRingCompletionsTest, CancelEndsARequestWhileOthersAreAnswered) {
  Submit(1);
  StartPipeline();
  completions_->Cancel(last_);
  EXPECT_THAT(Await(1), ElementsAre(std::pair(1, "CANCELLED: cancelled by the caller")));
  EXPECT_TRUE(is_busy());
}

TEST_F(RingCompletionsTest, RequestIsCopiedBeforeItCompletes) {
  std::atomic<bool> is_over = false;
  std::thread waker([&] {
    while (!is_over) server_.WakeReader();
  });
  const std::string sent(proto::kRingRequestBytes, 'x');
  std::string request;
  std::binary_semaphore completed(0);
  for (int i = 0; i < 10000; ++i) {
    request = sent;
    const auto ticket = completions_->Reserve();
    EXPECT_TRUE(ticket.has_value());
    if (!ticket.has_value()) break;
    completions_->Submit(*ticket, request, microseconds(0), [&](const Result<ReceivedReply>&) {
      request.assign(proto::kRingRequestBytes, 'y');  // as the next attempt does
      completed.release();
    });
    completed.acquire();
    const uint32_t slot = server_.Next();
    EXPECT_EQ(server_.RequestIn(slot), sent);
    server_.RespondQueued(slot, "too late");
  }
  is_over = true;
  waker.join();
}

TEST_F(RingCompletionsTest, FirstRequestAfterIdlenessFindsALostConnectionSoon) {
  server_.RespondQueued(Submit(1), "reply");
  Await(1);
  server_.AwaitReaderAsleep();
  server_.WakeReader();  // it finds no request, so it sleeps longer
  server_.AwaitReaderAsleep();
  server_.CloseConnection();
  const auto begin = std::chrono::steady_clock::now();
  Submit(2);
  EXPECT_THAT(Await(2).back().second, HasSubstr("UNAVAILABLE"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(500));
}

TEST_F(RingCompletionsTest, LostRingEndsEachRequestThatIsNotAnswered) {
  const uint32_t answered = Submit(1);
  Submit(2);
  Submit(3);
  server_.RespondQueued(answered, "reply");
  Await(1);
  server_.shared().closed.store(1);
  server_.WakeReader();
  Outcomes outcomes = Await(3);
  EXPECT_EQ(outcomes[0], std::pair(1, std::string("reply")));
  EXPECT_EQ(outcomes[1].second, "UNAVAILABLE: ring: the connection was lost");
  EXPECT_EQ(outcomes[2].second, outcomes[1].second);
  EXPECT_FALSE(completions_->Reserve().has_value());
}

TEST_F(RingCompletionsTest, ConnectionThatClosesWithoutAWordIsNoticed) {
  Submit(1);
  server_.AwaitReaderAsleep();
  server_.CloseConnection();
  EXPECT_THAT(Await(1).back().second, HasSubstr("UNAVAILABLE"));
}

TEST_F(RingCompletionsTest, CompletionsOfOtherSlotsChangeNothing) {
  const uint32_t slot = Submit(1);
  server_.WriteQueued((slot + 1) % proto::kRingSlots);
  server_.WriteQueued(slot + proto::kRingSlots + 1);
  server_.RespondQueued(slot, "reply");
  EXPECT_THAT(Await(1), ElementsAre(std::pair(1, "reply")));
  EXPECT_EQ(Submit(2), slot);
  server_.RespondQueued(slot, "reply");
  Await(2);
}

TEST_F(RingCompletionsTest, MayBeDestroyedByACompletion) {
  std::promise<void> destroyed;
  const auto ticket = completions_->Reserve();
  ASSERT_TRUE(ticket.has_value());
  completions_->Submit(*ticket, "request", hours(1), [&](const Result<ReceivedReply>&) {
    completions_.reset();
    destroyed.set_value();
  });
  server_.RespondQueued(server_.Next(), "reply");
  destroyed.get_future().wait();
}

}  // namespace
}  // namespace rope::client
