#include "client/calls/event_loop.h"

#include <grpc/support/time.h>
#include <grpcpp/alarm.h>

#include <algorithm>
#include <vector>

namespace rope::client {
namespace {

// Checks again and again whether gRPC has returned the slices. gRPC returns them on its threads and
// under its locks, where nothing can be started. Owns itself until then.
class ReturnWatch final : public EventHandler {
 public:
  ReturnWatch(grpc::CompletionQueue* queue, const BorrowedSlices& borrowed,
              std::function<void()> then)
      : queue_(queue), borrowed_(borrowed), then_(std::move(then)) {}
  virtual ~ReturnWatch() = default;

  void OnEvent(bool) override {
    if (!borrowed_.AllReturned()) return Arm();
    const std::unique_ptr<ReturnWatch> self(this);
    const std::function<void()> then = std::move(then_);
    then();
  }

  // The first checks follow at once, because the thread that wrote the bytes is about to return.
  // The others are ever more rare, because a peer that takes no bytes holds them.
  void Arm() {
    constexpr int kImmediate = 4;
    constexpr int kDoublings = 6;
    const int64_t delay_ms =
        looks_ < kImmediate ? 0 : int64_t{1} << std::min(looks_ - kImmediate, kDoublings);
    ++looks_;
    alarm_ = std::make_unique<grpc::Alarm>();
    alarm_->Set(
        queue_,
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(delay_ms, GPR_TIMESPAN)),
        static_cast<EventHandler*>(this));
  }

 private:
  grpc::CompletionQueue* const queue_;
  const BorrowedSlices& borrowed_;
  std::function<void()> then_;
  std::unique_ptr<grpc::Alarm> alarm_;
  int looks_ = 0;
};

}  // namespace

std::shared_ptr<EventQueue> EventQueue::Start(std::shared_ptr<const CallbackOwner> owner) {
  auto queue = std::make_shared<EventQueue>(std::move(owner));
  queue->thread_ = std::thread([queue] {
    EnterCallbackThread(*queue->owner_);
    void* tag = nullptr;
    bool ok = false;
    while (queue->queue_.Next(&tag, &ok)) static_cast<EventHandler*>(tag)->OnEvent(ok);
  });
  return queue;
}

void EventQueue::Add(std::shared_ptr<LiveCall> call) {
  const proto::MutexLock lock(&mu_);
  const LiveCall* key = call.get();
  live_.emplace(key, std::move(call));
}

void EventQueue::Remove(const LiveCall* call) {
  std::shared_ptr<LiveCall> last;  // destroyed after the lock is free
  bool is_over = false;
  {
    const proto::MutexLock lock(&mu_);
    const auto it = live_.find(call);
    last = std::move(it->second);
    live_.erase(it);
    is_over = closing_ && live_.empty();
  }
  if (is_over) queue_.Shutdown();
}

void EventQueue::WhenReturned(const BorrowedSlices& borrowed, std::function<void()> then) {
  if (borrowed.AllReturned()) return then();
  auto watch = std::make_unique<ReturnWatch>(&queue_, borrowed, std::move(then));
  watch.release()->Arm();  // owned by its next event
}

void EventQueue::Close() {
  std::vector<std::shared_ptr<LiveCall>> calls;
  bool is_over = false;
  {
    const proto::MutexLock lock(&mu_);
    closing_ = true;
    is_over = live_.empty();
    for (const auto& [key, call] : live_) calls.push_back(call);
  }
  for (const auto& call : std::exchange(calls, {})) call->Cancel();
  if (is_over) queue_.Shutdown();
  if (IsCallbackThreadOf(*owner_)) {
    thread_.detach();  // it ends after this callback, which cannot wait for it
  } else {
    thread_.join();
  }
}

}  // namespace rope::client
