#include "server/grpc/poll_loop.h"

#include <sched.h>

#include <chrono>
#include <optional>
#include <utility>

#include "kernels/check.h"

namespace rope::server {

PollLoop::PollLoop(grpc::ServerBuilder& builder, int threads, absl::Duration spin, OnIdle on_idle)
    : spin_(spin), on_idle_(std::move(on_idle)) {
  for (int i = 0; i < threads; ++i) {
    queues_.push_back(std::make_unique<CallQueue>(builder.AddCompletionQueue()));
  }
}

PollLoop::~PollLoop() {
  ROPE_CHECK(threads_.empty());
}

void PollLoop::Start() {
  for (const auto& queue : queues_) {
    threads_.emplace_back([this, &queue] { Run(*queue); });
  }
}

void PollLoop::Shutdown() {
  for (const auto& queue : queues_) queue->completion_queue().Shutdown();
  for (std::thread& thread : threads_) thread.join();
  if (threads_.empty()) {  // never started: this thread must empty the queues
    for (const auto& queue : queues_) Run(*queue);
  }
  threads_.clear();
}

// The first time that the queue is empty, gRPC may have looked at no socket: an event that was
// queued while no thread waited makes its next look return at once. The second time it has.
bool CallQueue::OnEmpty() {
  if (deferred_.empty()) {
    events_ = 0;
    return false;
  }
  if (++empty_ < 2) return true;
  events_ = empty_ = 0;
  for (Event* const event : std::exchange(deferred_, {})) event->Run(true);
  return true;
}

void PollLoop::Run(CallQueue& queue) const {
  void* tag = nullptr;
  bool ok = false;
  for (int events = 1; NextEvent(queue, &tag, &ok); ++events) {
    ++queue.events_;
    queue.empty_ = 0;
    static_cast<Event*>(tag)->Run(ok);
    if (events < CallQueue::kEventsMax) continue;
    events = 0;
    on_idle_();
  }
}

// Polls the queue. While events come, each AsyncNext returns one and no clock is read. The first
// time that the queue is empty and on_idle_ has nothing to do, the spin time begins; after it the
// thread sleeps in Next.
bool PollLoop::NextEvent(CallQueue& queue, void** tag, bool* ok) const {
  grpc::ServerCompletionQueue& completions = queue.completion_queue();
  // End of the spin time; empty until it begins.
  std::optional<std::chrono::steady_clock::time_point> end;
  while (true) {
    switch (completions.AsyncNext(tag, ok, gpr_time_0(GPR_CLOCK_MONOTONIC))) {
      case grpc::CompletionQueue::GOT_EVENT:
        return true;
      case grpc::CompletionQueue::SHUTDOWN:
        return false;
      case grpc::CompletionQueue::TIMEOUT:
        break;
    }
    if (queue.OnEmpty()) continue;
    if (!end.has_value() && on_idle_()) continue;  // its work may have made events
    const auto now = std::chrono::steady_clock::now();
    if (!end.has_value()) end = now + absl::ToChronoNanoseconds(spin_);
    if (now >= *end) return completions.Next(tag, ok);
    sched_yield();  // let other threads use this core
  }
}

}  // namespace rope::server
