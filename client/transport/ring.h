// Ring: the client's side of one ring (proto/ipc/ring.h): calls of Rotate that cost no RPC.
//
// A call takes a slot, and the calling thread waits for it: it polls for up to the spin time,
// yielding between polls, and then sleeps, as Stub::Call does; for the answer to a large request it
// sleeps at once. Nobody else works for it. Answers to requests that nobody waits for so are taken
// by one thread, the watcher (ring_watch.h).
//
// Threading:  Thread-safe once Open has returned; the watcher's functions on one thread.
// Ownership:  Owns its memory, the doorbell and a descriptor of the connection, which stays open
//             with it.
// Errors:     Create: as SharedMemory. Call: what the server answered; DEADLINE_EXCEEDED;
//             UNAVAILABLE: the connection was lost. Beside the last two the request may have run.
#ifndef ROPE_CLIENT_TRANSPORT_RING_H_
#define ROPE_CLIENT_TRANSPORT_RING_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "client/codec/codec.h"
#include "client/memory/shared_memory.h"
#include "proto/ipc/file_descriptor.h"
#include "proto/ipc/ring.h"
#include "proto/mutex.h"
#include "rope/status.h"

namespace rope::client {

class Ring {
 public:
  static Result<std::unique_ptr<Ring>> Create(std::chrono::microseconds spin);

  const SharedMemory& memory() const { return *memory_; }
  // The server serves it on the connection of `socket`, and wakes when `doorbell` is written to.
  void Open(proto::FileDescriptor doorbell, proto::FileDescriptor socket);

  // If it sleeps. Before a call that will come at once: it wakes up while the request is encoded.
  void WakeServer();
  // `tensor_bytes`: of the tensors that the request is about.
  // nullopt: it does not go through the ring, which is full or has ended.
  // REQUIRES of all requests: at most proto::kRingRequestBytes.
  std::optional<Result<ReceivedReply>> Call(std::string_view request, int64_t tensor_bytes,
                                            std::chrono::microseconds timeout);

  // A slot for a watched request; nullopt: as Call. Then, with what has to be known when its answer
  // is taken, SubmitWatched.
  std::optional<uint32_t> TakeSlot();
  void SubmitWatched(uint32_t slot, std::string_view request, std::chrono::microseconds timeout);

  // Of a slot that was submitted: where the server has not read it yet, it will not run it.
  void GiveUp(uint32_t slot) { shared().slots[slot].timeout_us.store(0); }

  // The watcher's: the next slot with an answer to a watched request.
  std::optional<uint32_t> NextAnswered();
  // What is in it, an `error` too; and the slot is free.
  Result<ReceivedReply> TakeAnswer(uint32_t slot);
  // Sleeps until there is one, StopWatching was called, or the time is over.
  void AwaitAnswered(std::chrono::microseconds timeout);
  // Wakes the watcher. From now on it does not sleep any more.
  void StopWatching();
  // Whether nothing will be answered any more.
  bool IsLost() const;

 private:
  using Clock = std::chrono::steady_clock;

  Ring(std::unique_ptr<SharedMemory> memory, std::chrono::microseconds spin);

  proto::Ring& shared() const { return *reinterpret_cast<proto::Ring*>(memory_->data()); }
  // False: the request is not to be waited for any more; its slot is free once it is answered.
  void GiveBack(uint32_t slot, bool answered);
  void Submit(uint32_t slot);
  enum class Outcome { kAnswered, kTimedOut, kLost };
  Outcome Await(proto::RingSlot& slot, bool may_poll, Clock::time_point deadline) const;
  Outcome Sleep(proto::RingSlot& slot, Clock::time_point deadline) const;
  static Result<ReceivedReply> AnswerIn(const proto::RingSlot& slot);

  const std::unique_ptr<SharedMemory> memory_;
  const std::chrono::microseconds spin_;
  proto::FileDescriptor doorbell_;
  proto::FileDescriptor socket_;

  uint32_t answers_taken_ = 0;  // of the watcher alone
  std::atomic<bool> stopped_watching_ = false;

  proto::Mutex mu_;
  std::vector<uint32_t> free_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> abandoned_
      ABSL_GUARDED_BY(mu_);  // given up, and not answered when last seen
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_TRANSPORT_RING_H_
