// Ring: the client's side of one ring (proto/ipc/ring.h).
//
// A synchronous call takes a slot and waits for its reply: it polls for up to the spin time,
// yielding between polls, and then sleeps, as Stub::Call does; for a large request it sleeps at
// once. Asynchronous requests are completed by one thread, which reads the completion queue
// (ring_completions.h).
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
  // Its slot is free once the server has answered it.
  void Abandon(uint32_t slot);
  void Submit(uint32_t slot);
  void WakeServer();
  enum class Outcome { kAnswered, kTimedOut, kLost };
  Outcome Await(proto::RingSlot& slot, bool may_poll, Clock::time_point deadline) const;
  Outcome Sleep(proto::RingSlot& slot, Clock::time_point deadline) const;

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

}  // namespace rope::client

#endif  // ROPE_CLIENT_TRANSPORT_RING_H_
