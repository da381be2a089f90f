// EventQueue: the queue on which the events of a connection's RPCs and alarms arrive, and the
// background thread that handles them.
//
// A call adds itself before its first operation and removes itself after its last event; the queue
// owns it in between.
//
// Threading:  Thread-safe; events run on its thread, which sleeps while nothing happens. The thread
//             is a callback thread of `owner` (waiter.h).
// Ownership:  The thread, the calls and the connection share the queue.
#ifndef ROPE_CLIENT_CALLS_EVENT_LOOP_H_
#define ROPE_CLIENT_CALLS_EVENT_LOOP_H_

#include <grpcpp/completion_queue.h>

#include <functional>
#include <memory>
#include <thread>
#include <unordered_map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "client/codec/message_call.h"
#include "client/transport/waiter.h"
#include "proto/mutex.h"

namespace rope::client {

// A call that the queue owns while it has events to come.
class LiveCall {
 public:
  virtual ~LiveCall() = default;
  // Thread-safe, any number of times, also when the call has ended.
  virtual void Cancel() = 0;
};

class EventQueue {
 public:
  explicit EventQueue(std::shared_ptr<const CallbackOwner> owner) : owner_(std::move(owner)) {}
  // A queue whose thread runs: it handles events until the queue is shut down and empty.
  static std::shared_ptr<EventQueue> Start(std::shared_ptr<const CallbackOwner> owner);
  // Cancels all calls. Once all have removed themselves, the thread ends; waits for it, except on a
  // callback thread. REQUIRES: called once, of a queue that was started.
  void Close();

  grpc::CompletionQueue* queue() { return &queue_; }

  void Add(std::shared_ptr<LiveCall> call);
  // The last thing that a call does: it may be destroyed on return.
  void Remove(const LiveCall* call);

  // Runs `then` once gRPC has returned `borrowed`: at once, or later on the queue's thread.
  // REQUIRES: on a callback thread; `borrowed` and a live call stay until `then` has run.
  void WhenReturned(const BorrowedSlices& borrowed, std::function<void()> then);

 private:
  const std::shared_ptr<const CallbackOwner> owner_;
  grpc::CompletionQueue queue_;
  std::thread thread_;
  proto::Mutex mu_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  std::unordered_map<const LiveCall*, std::shared_ptr<LiveCall>> live_ ABSL_GUARDED_BY(mu_);
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CALLS_EVENT_LOOP_H_
