// Planner: a thread that plans large requests. Reading their positions, rows or copies on the
// thread that received them would block it for longer than a slice. The planner visits the sessions
// round-robin and plans one request per visit.
//
// Threading:  Thread-safe. No lock is held while a request is planned.
// Ownership:  Enqueue takes the request if and only if it returns OK.
// Errors:     UNAVAILABLE: draining.
#ifndef ROPE_SERVER_ENGINE_PLANNER_H_
#define ROPE_SERVER_ENGINE_PLANNER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/mutex.h"
#include "server/request/request.h"

namespace rope::server {

class Planner {
 public:
  // Answers the request or passes it to the batcher. Called on the planner's thread.
  using Plan = std::function<void(std::unique_ptr<Request>)>;

  explicit Planner(Plan plan);
  // Drains.
  ~Planner();

  absl::Status Enqueue(std::unique_ptr<Request>& request);
  // Refuses new requests and returns when the last has been planned. Requests that still queue
  // after `timeout`, or after StopWaiting, are passed to `plan` with abandoned() true.
  void Drain(absl::Duration timeout = absl::InfiniteDuration());
  void StopWaiting();
  // Whether `plan` must answer requests with an error instead of planning them.
  bool abandoned() const { return abandoned_.load(); }

 private:
  using Queue = std::deque<std::unique_ptr<Request>>;

  void Loop();
  std::unique_ptr<Request> Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Plan plan_;

  proto::Mutex mutex_;
  proto::CondVar work_;                                       // queues_ or draining_ has changed
  std::map<uint64_t, Queue> queues_ ABSL_GUARDED_BY(mutex_);  // by session; none is empty
  std::deque<uint64_t> turn_ ABSL_GUARDED_BY(mutex_);         // sessions of queues_, next first
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // the thread has returned
  proto::CondVar drained_;                      // ended_ or abandoned_ has changed
  std::atomic<bool> abandoned_ = false;

  std::thread thread_;  // last: it uses all members above
};

}  // namespace rope::server

#endif  // ROPE_SERVER_ENGINE_PLANNER_H_
