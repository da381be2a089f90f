// Ring: the client's side of one ring (proto/ipc/ring.h).
//
// A synchronous call takes a slot and waits for its reply: it polls for up to the spin time,
// yielding between polls, and then sleeps, as Stub::Call does; for a large request it sleeps at
// once. Asynchronous requests are completed by one thread, which reads the completion queue
// (RingCompletions).
//
// Threading:  Thread-safe once Open has returned. One thread at a time reads completions.
// Ownership:  Owns its memory, the doorbell and a descriptor of the connection, which stays open
//             with it.
// Errors:     Create: as SharedMemory. Call: the server's error; DEADLINE_EXCEEDED; UNAVAILABLE:
//             the connection was lost. With the last two the request may have run.
#ifndef ROPE_CLIENT_TRANSPORT_RING_H_
#define ROPE_CLIENT_TRANSPORT_RING_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "client/codec/codec.h"
#include "client/memory/shared_memory.h"
#include "client/transport/waiter.h"
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

  // Sends a request and waits for its reply. `tensor_bytes`: of all its tensors. nullopt: the ring
  // has no free slot, or has ended. REQUIRES: at most proto::kRingRequestBytes.
  std::optional<Result<ReceivedReply>> Call(std::string_view request, int64_t tensor_bytes,
                                            std::chrono::microseconds timeout);

  // A slot for one request, which must be submitted; nullopt: as Call.
  std::optional<uint32_t> Reserve();
  // Submits a request whose reply goes to the completion queue.
  // REQUIRES: `slot` is reserved; as Call.
  void SubmitQueued(uint32_t slot, std::string_view request, std::chrono::microseconds timeout);
  // Gives up a submitted request: the server does not run it if it has not read it yet.
  void GiveUp(uint32_t slot) { shared().slots[slot].timeout_us.store(0); }

  // These four are for the reader of completions. The next completed slot, or nullopt:
  std::optional<uint32_t> NextCompleted();
  // The reply in a completed slot, which is free afterwards.
  Result<ReceivedReply> TakeReply(uint32_t slot);
  // Sleeps until a slot completes, the ring ends, WakeReader is called or the time is over.
  void AwaitCompletion(std::chrono::microseconds timeout);
  // Ends the current or the next AwaitCompletion. Callable from any thread.
  void WakeReader();

  // Whether no more replies will come.
  bool IsLost() const;

 private:
  using Clock = std::chrono::steady_clock;

  Ring(std::unique_ptr<SharedMemory> memory, std::chrono::microseconds spin);

  proto::Ring& shared() const { return *reinterpret_cast<proto::Ring*>(memory_->data()); }
  void Submit(uint32_t slot);
  enum class Outcome { kAnswered, kTimedOut, kLost };
  Outcome Await(proto::RingSlot& slot, bool may_poll, Clock::time_point deadline) const;

  const std::unique_ptr<SharedMemory> memory_;
  const std::chrono::microseconds spin_;
  proto::FileDescriptor doorbell_;
  proto::FileDescriptor socket_;

  uint32_t completions_read_ = 0;  // by the reader
  std::atomic<bool> reader_woken_ = false;

  proto::Mutex mu_;
  std::vector<uint32_t> free_ ABSL_GUARDED_BY(mu_);
  // Given up, and not answered when last seen.
  std::vector<uint32_t> abandoned_ ABSL_GUARDED_BY(mu_);
};

// RingCompletions: the asynchronous requests of one ring, and the thread that completes them.
//
//   Reserve -> Submit -> completed: answered, given up (cancelled, or past its deadline), or lost
//                        with the ring
//
// The thread starts with the first request. It reads the ring's completion queue, gives up requests
// whose time is over, and fails them all when the ring is lost. It sleeps while nothing happens.
// The slot of a request that was given up is free again once the server has answered it.
//
// Threading:  Thread-safe. Requests complete on the thread of this object, a callback thread of
//             `owner` (waiter.h), under no lock.
// Ownership:  The destructor joins the thread. On that thread itself it does not wait: the thread
//             ends after the current completion. REQUIRES: every request has completed.

class RingCompletions {
 public:
  using OnReply = std::function<void(Result<ReceivedReply>)>;

  // A quarter of the slots stays free for synchronous calls.
  static constexpr int64_t kRequestsMax = proto::kRingSlots / 4 * 3;

  // A slot of the ring, for one request.
  struct Ticket {
    uint32_t slot = 0;
    uint64_t number = 0;  // tells apart the requests that use the slot one after another
  };

  RingCompletions(std::shared_ptr<Ring> ring, std::shared_ptr<const CallbackOwner> owner);
  ~RingCompletions();
  RingCompletions(const RingCompletions&) = delete;
  RingCompletions& operator=(const RingCompletions&) = delete;

  // nullopt: kRequestsMax are taken, or as Ring::Reserve. The ticket must be submitted.
  std::optional<Ticket> Reserve();
  // `on_reply` runs once, possibly before Submit returns. REQUIRES: as Ring::SubmitQueued.
  void Submit(const Ticket& ticket, std::string_view request, std::chrono::microseconds timeout,
              OnReply on_reply);
  // Gives up a request, also one that is not submitted yet. No effect if it has completed.
  void Cancel(const Ticket& ticket);

 private:
  class Requests;  // what the thread shares with this object, and holds until it ends

  const std::shared_ptr<Requests> requests_;
  proto::Mutex mu_;
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_TRANSPORT_RING_H_
