// PollLoop: threads that own a completion queue each and run what comes out of it. After the last
// event a thread polls for a bounded time before it sleeps, because waking a sleeping thread costs
// as much as a small call.
//
// Threading:  Events run on the thread of their queue. Start and Shutdown are called once each, by
//             one thread.
// Ownership:  An Event is owned by whoever scheduled it; Run may delete its object.
#ifndef ROPE_SERVER_GRPC_POLL_LOOP_H_
#define ROPE_SERVER_GRPC_POLL_LOOP_H_

#include <grpcpp/completion_queue.h>
#include <grpcpp/server_builder.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/time/time.h"

namespace rope::server {

// What a completion queue hands back.
class Event {
 public:
  virtual ~Event() = default;
  virtual void Run(bool ok) = 0;
};

// An event that calls one member of `Call`.
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
  // What a thread still has to do when no event is left, and after kEventsMax without a pause.
  // True: it has done some.
  using OnIdle = std::function<bool()>;

  // Adds `threads` queues to the server that is being built.
  PollLoop(
      grpc::ServerBuilder& builder, int threads, absl::Duration spin,
      OnIdle on_idle = [] { return false; });
  // REQUIRES: not started, or shut down.
  ~PollLoop();

  const std::vector<std::unique_ptr<grpc::ServerCompletionQueue>>& queues() const {
    return queues_;
  }
  // Starts the threads; the server has been built.
  void Start();
  // Shuts the queues, lets their last events run and joins the threads. REQUIRES: the server was
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
