// SessionQueue: queues by session, which take turns, so that a session with many entries delays
// an entry of another session by one. DrainState: how the thread that serves such queues ends.
//
// Threading:  Confined to the mutex of its user.
#ifndef ROPE_SERVER_ENGINE_SESSION_QUEUE_H_
#define ROPE_SERVER_ENGINE_SESSION_QUEUE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
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
  // The number of sessions that have entries.
  size_t sessions() const { return turn_.size(); }

  // Adds an entry behind the others of its session.
  void Push(uint64_t session, T entry) {
    const auto queue = queues_.try_emplace(session).first;
    queue->second.push_back(std::move(entry));
    if (queue->second.size() == 1) turn_.push_back(queue);
  }

  // The first entry of the session whose turn it is. REQUIRES, here and below: not empty().
  T& front() { return turn_.front()->second.front(); }
  // Takes front() and ends its session's turn.
  T Pop() {
    T entry = std::move(front());
    turn_.front()->second.pop_front();
    Skip();
    if (turn_.back()->second.empty()) Erase(std::prev(turn_.end()));
    return entry;
  }
  // Ends the turn of front()'s session.
  void Skip() {
    turn_.push_back(turn_.front());
    turn_.pop_front();
  }

  // Takes the entry of a session that matches. REQUIRES: there is one.
  template <typename Matches>
  T Extract(uint64_t session, Matches matches) {
    const auto queue = queues_.find(session);
    const auto found = std::find_if(queue->second.begin(), queue->second.end(), matches);
    T entry = std::move(*found);
    queue->second.erase(found);
    if (queue->second.empty()) Erase(std::find(turn_.begin(), turn_.end(), queue));
    return entry;
  }

  // The number of entries that match.
  template <typename Matches>
  int64_t CountIf(Matches matches) const {
    int64_t count = 0;
    for (const auto& [session, queue] : queues_) {
      count += std::count_if(queue.begin(), queue.end(), matches);
    }
    return count;
  }

 private:
  using Queues = std::map<uint64_t, std::deque<T>>;
  using Turn = std::deque<typename Queues::iterator>;

  void Erase(typename Turn::iterator turn) {
    queues_.erase(*turn);
    turn_.erase(turn);
  }

  Queues queues_;  // by session; none is empty between two calls
  Turn turn_;      // each of queues_ once, next first
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
