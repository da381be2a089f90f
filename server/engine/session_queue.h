// SessionQueue: queues by session, which take turns, so that a session with many entries delays
// an entry of another session by one. DrainState: how the thread that serves such queues ends.
//
// Threading:  Confined to the mutex of its user.
#ifndef ROPE_SERVER_ENGINE_SESSION_QUEUE_H_
#define ROPE_SERVER_ENGINE_SESSION_QUEUE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "proto/mutex.h"
#include "server/clock.h"

namespace rope::server {

template <typename T>
class SessionQueue {
 public:
  bool empty() const { return turn_.empty(); }

  // Adds an entry behind the others of its session.
  void Push(uint64_t session, T entry) {
    const auto queue = queues_.try_emplace(session).first;
    queue->second.push_back(std::move(entry));
    if (queue->second.size() == 1) turn_.push_back(queue);
  }

  // Takes the first entry of the session whose turn it is, and ends the turn. REQUIRES: not
  // empty().
  T Pop() {
    const auto queue = turn_.front();
    turn_.pop_front();
    T entry = std::move(queue->second.front());
    queue->second.pop_front();
    if (queue->second.empty()) {
      queues_.erase(queue);
    } else {
      turn_.push_back(queue);
    }
    return entry;
  }

 private:
  using Queues = std::map<uint64_t, std::deque<T>>;

  Queues queues_;                               // by session; none is empty between two calls
  std::deque<typename Queues::iterator> turn_;  // each of queues_ once, next first
};

struct DrainState {
  bool draining = false;   // nothing new is accepted
  bool abandoned = false;  // what still queues is answered instead of done
  bool ended = false;      // the thread has returned
  proto::CondVar changed;  // `abandoned` or `ended`

  // Waits until the thread has ended or its queues are abandoned, as they are at `end`.
  void Await(proto::Mutex* mutex, const Clock& clock, absl::Time end)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    while (!ended && !abandoned) {
      const absl::Duration left = end - clock.Now();
      if (left == absl::InfiniteDuration()) {
        changed.Wait(mutex);
      } else {
        abandoned = !changed.WaitFor(mutex, absl::ToChronoNanoseconds(left)) || abandoned;
      }
    }
  }
  void Abandon() {
    abandoned = true;
    changed.SignalAll();
  }
  void End() {
    ended = true;
    changed.SignalAll();
  }
};

}  // namespace rope::server

#endif  // ROPE_SERVER_ENGINE_SESSION_QUEUE_H_
