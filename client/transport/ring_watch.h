// RingWatch: the thread that takes the answers to watched requests of one ring (ring.h) and hands
// them on, as events of the connection's background thread: never beside one of them.
//
// Threading:  Submit and Stop on any thread; answers come on the watch's own, in the queue's turn
//             (Strand::turn), so that it counts as the queue's thread.
// Ownership:  The thread holds the watch and the queue until it ends: after Stop, or where nobody
//             else has the ring, or the ring is lost. Who waits is held weakly: an answer that
//             nobody waits for any more is dropped.
#ifndef ROPE_CLIENT_TRANSPORT_RING_WATCH_H_
#define ROPE_CLIENT_TRANSPORT_RING_WATCH_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "client/transport/ring.h"
#include "client/transport/strand.h"
#include "proto/mutex.h"

namespace rope::client {

class RingWatch {
 public:
  // Who waits for an answer.
  class Waiting {
   public:
    virtual ~Waiting() = default;
    // `number`: as submitted.
    virtual void OnAnswer(uint64_t number, Result<ReceivedReply> reply) = 0;
    // Nothing will be answered any more.
    virtual void OnLost() = 0;
  };

  static std::shared_ptr<RingWatch> Start(std::shared_ptr<Ring> ring,
                                          std::shared_ptr<Strand> strand);
  explicit RingWatch(std::shared_ptr<Ring> ring);

  // False: it does not go through the ring (Ring::Call).
  // REQUIRES: the caller's session has the ring; at most proto::kRingRequestBytes.
  bool Submit(std::string_view request, std::chrono::microseconds timeout,
              const std::shared_ptr<Waiting>& waiting, uint64_t number);
  // Nobody waits for what `waiting` has submitted any more: what the server has not read yet does
  // not run.
  void GiveUp(const Waiting& waiting);
  // Ends the thread. Answers may be lost.
  void Stop();
  // Waits for its end, or leaves it to itself. REQUIRES: once one of them; Stop.
  void Join() { thread_.join(); }
  void Detach() { thread_.detach(); }
  // Waits for it where it has ended by itself; false: it has not.
  bool JoinIfEnded();

  // Whether this is the watch of `ring`, whose thread has not ended.
  bool Watches(const Ring& ring);

 private:
  struct Expected {
    std::weak_ptr<Waiting> waiting;
    uint64_t number = 0;
  };

  void Run(Strand& strand);
  // Hands on what has been answered; false: nothing.
  bool HandOn(Strand& strand);
  Expected TakeExpected(uint32_t slot);
  // Tells everybody who still waits.
  void EndAll(Strand& strand);

  std::shared_ptr<Ring> ring_;  // null once the thread has ended; changes under mu_
  std::atomic<bool> stopped_ = false;
  proto::Mutex mu_;
  std::array<Expected, proto::kRingSlots> expected_ ABSL_GUARDED_BY(mu_);  // by slot
  std::thread thread_;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_TRANSPORT_RING_WATCH_H_
