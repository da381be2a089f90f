// PollLoop: threads that own one completion queue each and run its events. After the last event a
// thread polls for a bounded time before it sleeps, because waking a sleeping thread costs as much
// as a small call.
//
// Threading:  Events run on the thread of their queue. One thread calls Start and Shutdown, once
//             each.
// Ownership:  The code that scheduled an Event owns it; Run may delete its object.
#ifndef ROPE_SERVER_GRPC_POLL_LOOP_H_
#define ROPE_SERVER_GRPC_POLL_LOOP_H_

#include <grpcpp/completion_queue.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/time/time.h"

namespace rope::server {

// Half of the processors, 1 to 8. The other half is for the batch thread, its workers and clients
// on the same host. On two processors, one poll thread answers a small call in half the time of two
// poll threads, which take each other's events. More than a few threads only alternate on the same
// sockets.
inline int PollThreads(int processors) {
  return std::clamp(processors / 2, 1, 8);
}

// The tag of a completion queue.
class Event {
 public:
  virtual ~Event() = default;
  virtual void Run(bool ok) = 0;
};

// An event that calls a member function of `Call`.
template <typename Call>
class CallEvent final : public Event {
 public:
  using Step = void (Call::*)(bool ok);
  CallEvent(Call* call, Step step) : call_(call), step_(step) {}
  void Run(bool ok) override { (call_->*step_)(ok); }

 private:
  Call* const call_;
  const Step step_;
};

class PollLoop {
 public:
  // Called on the queue's thread when the queue is empty, and after every kEventsMax events.
  // Returns whether to poll the queue again at once.
  using OnIdle = std::function<bool()>;

  // Adds `threads` queues to `builder`.
  PollLoop(
      grpc::ServerBuilder& builder, int threads, absl::Duration spin,
      OnIdle on_idle = [] { return false; });
  // REQUIRES: not started, or shut down.
  ~PollLoop();

  const std::vector<std::unique_ptr<grpc::ServerCompletionQueue>>& queues() const {
    return queues_;
  }
  // Starts the threads. REQUIRES: the server has been built.
  void Start();
  // Shuts the queues down, runs their last events and joins the threads. REQUIRES: the server was
  // shut down.
  void Shutdown();

 private:
  static constexpr int kEventsMax = 64;

  void Run(grpc::ServerCompletionQueue& queue) const;
  bool NextEvent(grpc::ServerCompletionQueue& queue, void** tag, bool* ok) const;

  const absl::Duration spin_;
  const OnIdle on_idle_;
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues_;
  std::vector<std::thread> threads_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_POLL_LOOP_H_
