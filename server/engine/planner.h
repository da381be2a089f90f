// Planner: a thread that plans requests whose positions, rows or copies would hold up the thread
// that received them for longer than a slice. It takes one request of each session in turn.
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
  // Answers the request or hands it on. Called on the planner's thread.
  using Plan = std::function<void(std::unique_ptr<Request>)>;

  explicit Planner(Plan plan);
  // Drains.
  ~Planner();

  absl::Status Enqueue(std::unique_ptr<Request>& request);
  // Refuses new requests and returns when the last has been planned. What still queues after
  // `timeout`, or StopWaiting, is handed to `plan` with abandoned() true.
  void Drain(absl::Duration timeout = absl::InfiniteDuration());
  void StopWaiting();
  // Whether requests are to be answered and not planned.
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
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // the thread has nothing left to do
  proto::CondVar drained_;                      // ended_ or abandoned_ has changed
  std::atomic<bool> abandoned_ = false;

  std::thread thread_;  // last: starts when everything else stands
};

}  // namespace rope::server

#endif  // ROPE_SERVER_ENGINE_PLANNER_H_
