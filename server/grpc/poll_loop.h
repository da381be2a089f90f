// The completion queue of calls: the calls in flight, the messages that are being read, and the
// thread that takes their events.
#ifndef ROPE_SERVER_GRPC_POLL_LOOP_H_
#define ROPE_SERVER_GRPC_POLL_LOOP_H_

#include <grpcpp/completion_queue.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/mutex.h"
#include "server/clock.h"

namespace rope::server {

// CallsInFlight: counts calls from the receipt of their message until they are freed, and call
// objects from when they are armed.
//
// Threading:  Thread-safe.

class CallsInFlight {
 public:
  // A call object is open from when it is made until it is freed: armed, reading, handled, ending.
  void Open() { open_.fetch_add(1); }
  void Close() {
    if (open_.fetch_sub(1) == 1) open_.notify_all();
  }

  // Waits until no call object exists. A queue may be shut down only then, because gRPC aborts the
  // process if a call starts a step on a queue that is shut down. REQUIRES: the gRPC server is shut
  // down, so that every step comes back and no call is armed any more.
  void AwaitNoneOpen() const {
    for (int64_t open = open_.load(); open != 0; open = open_.load()) open_.wait(open);
  }

  void Add() {
    proto::MutexLock lock(&mutex_);
    ++count_;
  }
  void Remove() {
    proto::MutexLock lock(&mutex_);
    if (--count_ == 0) none_.SignalAll();
  }
  // Waits until the count is 0, for at most `timeout`, or until StopWaiting.
  void AwaitNone(absl::Duration timeout) {
    const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(timeout);
    proto::MutexLock lock(&mutex_);
    while (count_ != 0 && !stopped_) {
      const auto left = end - std::chrono::steady_clock::now();
      if (left.count() <= 0) return;
      none_.WaitFor(&mutex_, left);
    }
  }
  // AwaitNone returns at once from now on.
  void StopWaiting() {
    proto::MutexLock lock(&mutex_);
    stopped_ = true;
    none_.SignalAll();
  }

 private:
  std::atomic<int64_t> open_{0};
  proto::Mutex mutex_;
  proto::CondVar none_;  // count_ has become 0, or stopped_ true
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

// MessageReads: the messages that are being read. gRPC reports a message only when it is complete,
// so a client that sends half of one holds memory. A call enters before it asks gRPC to read, and
// leaves when the message has come.
//
// Threading:  Thread-safe. The lock is held while a call is ended, which calls gRPC; gRPC never
//             calls back. So a call that has left is never ended.
// Ownership:  Refers to entries between Enter and Leave.
class MessageReads {
 public:
  // A call whose message is being read.
  class Entry {
   public:
    virtual ~Entry() = default;

   protected:
    // The message did not come in time: ends the RPC. Called under the lock, on any thread.
    virtual void EndRead(const absl::Status& status) = 0;
    // The client has not taken that end in time: cancels the RPC. As EndRead.
    virtual void CancelRead() = 0;
    // Whether EndRead has run. REQUIRES: not in the list.
    bool read_ended() const { return ended_at_ < absl::InfiniteFuture(); }

   private:
    friend class MessageReads;
    absl::string_view owner_;
    bool is_open_stream_ = false;
    bool entered_ = false;
    absl::Time began_;
    absl::Time ended_at_ = absl::InfiniteFuture();  // when EndRead was called
    Entry* older_ = nullptr;
    Entry* newer_ = nullptr;
  };

  // Calls that are ended under one lock.
  static constexpr int64_t kEndedAtOnce = 64;

  explicit MessageReads(const Clock& clock) : clock_(clock) {}

  const Clock& clock() const { return clock_; }

  // `owner`: of the call, valid until Leave. `is_open_stream`: the client may legally send nothing.
  // Such a read is never late.
  void Enter(Entry& entry, absl::string_view owner, bool is_open_stream);
  void Leave(Entry& entry);

  // The number of all reads, open streams included.
  int64_t CountAll() const { return all_.load(); }
  // The number of reads whose message must come.
  int64_t count() const { return count_.load(); }
  // Returns whether a read was entered since the last call that returned true. A new one may be
  // done by now, so the caller should poll its queue again.
  bool HasNew() {
    return has_new_.load(std::memory_order_relaxed) &&
           has_new_.exchange(false, std::memory_order_relaxed);
  }
  // Ends calls whose read began before `before`, with `status`: a bounded number, the oldest first.
  // Returns the number.
  int64_t EndSince(absl::Time before, const absl::Status& status);
  // Ends up to `wanted` calls whose read began before `before`, a bounded number: the oldest of the
  // owner whose reads have taken the most time together. Calls that ended so count for a second
  // more, since who begins again at once has none that is old. If that owner has no such call,
  // nothing ends. With `of_anybody`, ranks only owners that have such calls, and ends streams if
  // there is no other call. Returns the number.
  int64_t EndOfGreediest(absl::Time before, int64_t wanted, bool of_anybody,
                         const absl::Status& status);
  // Cancels the calls that were ended before `ended_before` and are still here.
  void CancelEnded(absl::Time ended_before);

 private:
  // The reads of an owner that EndOfGreediest has ended.
  struct Ends {
    absl::Duration took;  // together
    absl::Time last;
  };

  void End(Entry& entry, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t EndOfGreediest(absl::Time before, int64_t wanted, bool of_anybody, bool streams,
                         const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  std::atomic<int64_t> all_ = 0;
  std::atomic<int64_t> count_ = 0;
  std::atomic<bool> has_new_ = false;
  mutable proto::Mutex mutex_;
  Entry* oldest_ ABSL_GUARDED_BY(mutex_) = nullptr;
  Entry* newest_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::map<std::string, Ends> ends_ ABSL_GUARDED_BY(mutex_);  // by owner, of a second
};

// PollLoop: threads that own one completion queue each and run its events. After the last event a
// thread polls for a bounded time before it sleeps, because waking a sleeping thread costs as much
// as a small call.
//
// Threading:  Events run on the thread of their queue. One thread calls Start and Shutdown, once
//             each.
// Ownership:  The code that scheduled an Event owns it; Run may delete its object.

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

// A completion queue, and the events that wait until its thread has looked at the sockets.
//
// gRPC looks at sockets only when the queue is empty. A stream whose next message is there as soon
// as the server asks for it keeps the queue full, and no other client is heard. So after kEventsMax
// events in succession no stream asks for more: the queue runs empty, the thread looks at the
// sockets, and then it runs the deferred events. Calls are not deferred: nothing bounds those that
// gRPC has read and keeps, so they are taken before it reads more.
//
// Threading:  Confined to the queue's thread, except completion_queue().
class CallQueue {
 public:
  static constexpr int kEventsMax = 64;

  explicit CallQueue(std::unique_ptr<grpc::ServerCompletionQueue> queue)
      : queue_(std::move(queue)) {}

  grpc::ServerCompletionQueue& completion_queue() { return *queue_; }

  // Whether the step that runs should ask for no further message, and Defer what would.
  bool must_look() const { return events_ >= kEventsMax; }
  // Runs `event` once, after the thread has looked at the sockets. It must live until then.
  void Defer(Event& event) { deferred_.push_back(&event); }

 private:
  friend class PollLoop;
  // The queue is empty. Runs what was deferred once the sockets were looked at. Returns whether to
  // ask the queue again at once.
  bool OnEmpty();

  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  int events_ = 0;  // since the thread looked at the sockets
  int empty_ = 0;   // times in succession that the queue was empty
  std::vector<Event*> deferred_;
};

class PollLoop {
 public:
  // Called on the queue's thread when the queue is empty, and after every kEventsMax events.
  // Returns whether to poll the queue again at once.
  using OnIdle = std::function<bool()>;

  // Adds `threads` queues to `builder`.
  PollLoop(grpc::ServerBuilder& builder, int threads, absl::Duration spin, OnIdle on_idle);
  // REQUIRES: not started, or shut down.
  ~PollLoop();

  const std::vector<std::unique_ptr<CallQueue>>& queues() const { return queues_; }
  // Starts the threads. REQUIRES: the server has been built.
  void Start();
  // Shuts the queues down, runs their last events and joins the threads. REQUIRES: the server was
  // shut down.
  void Shutdown();

 private:
  void Run(CallQueue& queue) const;
  bool NextEvent(CallQueue& queue, void** tag, bool* ok) const;

  const absl::Duration spin_;
  const OnIdle on_idle_;
  std::vector<std::unique_ptr<CallQueue>> queues_;
  std::vector<std::thread> threads_;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_POLL_LOOP_H_
