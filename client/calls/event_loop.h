// EventLoop: the background thread of a connection, and the queue on which the events of its
// asynchronous calls arrive. Where streams use a ring, a second thread takes the answers there
// (ring_watch.h); the two take turns, so that all events are handled one after another.
//
// A call adds itself before its first operation and removes itself after its last event; the queue
// owns it in between. When the EventLoop goes, the calls that are left are cancelled, and once they
// have removed themselves the thread ends.
//
// Threading:  EventQueue is thread-safe; events and Remove are on its threads only, which sleep
//             while nothing happens.
// Ownership:  The thread, the calls and the EventLoop share the queue.
#ifndef ROPE_CLIENT_CALLS_EVENT_LOOP_H_
#define ROPE_CLIENT_CALLS_EVENT_LOOP_H_

#include <grpcpp/completion_queue.h>

#include <functional>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "client/codec/borrowed_slices.h"
#include "client/transport/ring.h"
#include "client/transport/ring_watch.h"
#include "client/transport/strand.h"
#include "proto/mutex.h"

namespace rope::client {

// What a tag on the queue points to.
class EventHandler {
 public:
  virtual void OnEvent(bool ok) = 0;

 protected:
  ~EventHandler() = default;
};

// A call that the queue owns while it has events to come.
class LiveCall {
 public:
  virtual ~LiveCall() = default;
  // Thread-safe, any number of times, also when the call has ended.
  virtual void Cancel() = 0;
};

class EventQueue final : public Strand, public std::enable_shared_from_this<EventQueue> {
 public:
  grpc::CompletionQueue* queue() { return &queue_; }
  // Whether this is the queue's thread, or that of a watch.
  bool OnThread() const;
  // The watch of a ring, which it starts. It ends with the EventLoop.
  std::shared_ptr<RingWatch> WatchOf(const std::shared_ptr<Ring>& ring);

  void EnterThread() const override;
  proto::Mutex& turn() override { return turn_; }

  void Add(std::shared_ptr<LiveCall> call);
  // The last thing that a call does: it may be destroyed on return.
  void Remove(const LiveCall* call);

  // Runs `then` on this thread once every loan is back: at once, or later.
  // REQUIRES: on the queue's thread; `loans` and a live call stay until `then` ran.
  void WhenReturned(const BorrowedSlices& borrowed, std::function<void()> then);

 private:
  friend class EventLoop;

  // Handles events until the queue is shut down and empty.
  void Run();
  // Ends all watches; `wait`: returns when they have.
  void StopWatches(bool wait);
  // Cancels all calls; the queue shuts down when the last is gone.
  void Close();

  grpc::CompletionQueue queue_;
  proto::Mutex turn_;  // held while an event is handled
  proto::Mutex mu_;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  std::unordered_map<const LiveCall*, std::shared_ptr<LiveCall>> live_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<RingWatch>> watches_ ABSL_GUARDED_BY(mu_);
};

class EventLoop {
 public:
  EventLoop();
  // Waits for the thread, unless this is it.
  ~EventLoop();

  const std::shared_ptr<EventQueue>& queue() const { return queue_; }

 private:
  const std::shared_ptr<EventQueue> queue_ = std::make_shared<EventQueue>();
  std::thread thread_;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_CALLS_EVENT_LOOP_H_
