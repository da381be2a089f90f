#include "client/calls/event_loop.h"

#include <grpcpp/alarm.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>

namespace rope::client {
namespace {

// A call with one event: that of an alarm, far off unless it is cancelled.
class AlarmCall final : public LiveCall, public EventHandler {
 public:
  explicit AlarmCall(EventQueue* queue, std::function<void()> on_event)
      : queue_(queue), on_event_(std::move(on_event)) {}

  void Start(std::chrono::system_clock::duration delay) {
    alarm_.Set(queue_->queue(), std::chrono::system_clock::now() + delay,
               static_cast<EventHandler*>(this));
  }
  void Cancel() override { alarm_.Cancel(); }
  void OnEvent(bool) override {
    on_event_();
    queue_->Remove(this);
  }

 private:
  EventQueue* const queue_;
  const std::function<void()> on_event_;
  grpc::Alarm alarm_;
};

TEST(EventLoopTest, EndsWithoutEverHavingHadACall) {
  const EventLoop loop(std::make_shared<CallbackOwner>());
  EXPECT_FALSE(loop.queue()->OnCallbackThread());
}

TEST(EventLoopTest, EventsComeOnItsThread) {
  const EventLoop loop(std::make_shared<CallbackOwner>());
  std::promise<bool> on_thread;
  EventQueue* const queue = loop.queue().get();
  const auto call =
      std::make_shared<AlarmCall>(queue, [&] { on_thread.set_value(queue->OnCallbackThread()); });
  queue->Add(call);
  call->Start(std::chrono::seconds(0));
  EXPECT_TRUE(on_thread.get_future().get());
}

TEST(EventLoopTest, DestructionCancelsWhatIsLeftAndWaits) {
  std::atomic<int> events = 0;
  {
    const EventLoop loop(std::make_shared<CallbackOwner>());
    for (int i = 0; i < 3; ++i) {
      const auto call = std::make_shared<AlarmCall>(loop.queue().get(), [&events] { ++events; });
      loop.queue()->Add(call);
      call->Start(std::chrono::hours(1));
    }
  }
  EXPECT_EQ(events, 3);
}

TEST(EventLoopTest, DestructionOnItsOwnThreadDoesNotWait) {
  auto loop = std::make_unique<EventLoop>(std::make_shared<CallbackOwner>());
  std::promise<void> other_ended;
  EventQueue* const queue = loop->queue().get();
  const auto other = std::make_shared<AlarmCall>(queue, [&] { other_ended.set_value(); });
  queue->Add(other);
  other->Start(std::chrono::hours(1));
  const auto call = std::make_shared<AlarmCall>(queue, [&loop] { loop.reset(); });
  queue->Add(call);
  call->Start(std::chrono::seconds(0));
  other_ended.get_future().wait();
}

TEST(EventLoopTest, SlicesThatComeBackLaterAreWaitedFor) {
  const std::string bytes(10, 'x');
  BorrowedSlices borrowed;
  auto lent = std::make_unique<grpc::Slice>(borrowed.Borrow(bytes));
  const EventLoop loop(std::make_shared<CallbackOwner>());
  EventQueue* const queue = loop.queue().get();
  std::promise<bool> returned;
  std::promise<void> watched;
  // Stays live until the loans are back.
  const auto live = std::make_shared<AlarmCall>(queue, [&] {
    queue->WhenReturned(borrowed, [&] { returned.set_value(borrowed.AllReturned()); });
    watched.set_value();
  });
  const auto keeper = std::make_shared<AlarmCall>(queue, [] {});
  queue->Add(keeper);
  keeper->Start(std::chrono::hours(1));
  queue->Add(live);
  live->Start(std::chrono::seconds(0));
  watched.get_future().wait();
  auto result = returned.get_future();
  EXPECT_EQ(result.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  lent.reset();
  EXPECT_TRUE(result.get());
}

TEST(EventLoopTest, SlicesThatAreBackAreNotWaitedFor) {
  const BorrowedSlices borrowed;
  const EventLoop loop(std::make_shared<CallbackOwner>());
  bool ran = false;
  loop.queue()->WhenReturned(borrowed, [&ran] { ran = true; });
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace rope::client
