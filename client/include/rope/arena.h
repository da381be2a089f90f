// Arena: memory that client and server share, handed out as slots. Tensors whose memory lies in
// slots of a client's arena travel as a place and a size instead of as bytes, on every kind of
// call, whatever their size; where the connection has no shared memory, the same program runs with
// their bytes in the message.
//
//   client = Client::Connect(target, {.arena_bytes = 64 << 20})
//   slot = client.arena().Allocate(bytes) -> write q into slot.data() -> Rotate, in place or into
//   another slot -> read -> keep the slot for the next step
//
// Threading:  Thread-safe; a copy of an Arena is the same memory. A Slot is as its memory is.
// Ownership:  A slot gives its memory back when it goes, and keeps the arena's mapping alive until
//             then. REQUIRES: no call in flight uses it.
// Errors:     INVALID_ARGUMENT: a size below 0. RESOURCE_EXHAUSTED: no run of free memory is so
//             large; what other slots give back may make room.
// Limits:     Capacity as given to Connect; it never grows. Slots are aligned to 64 bytes.
//
// While a call is in flight its memory is the server's as well as the caller's. A call that ends
// without the server's word (DEADLINE_EXCEEDED, CANCELLED, a lost connection) may leave the server
// at work on it: Status::detail().executed is true then, and the slots of that call are used for
// others once Client::Fence has returned OK.
#ifndef ROPE_ARENA_H_
#define ROPE_ARENA_H_

#include <cstdint>
#include <memory>

#include "rope/status.h"

namespace rope::client {

class ArenaMemory;

class Slot {
 public:
  Slot() = default;  // of no memory
  Slot(Slot&& other) noexcept;
  Slot& operator=(Slot&& other) noexcept;
  ~Slot();

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  friend class Arena;
  Slot(std::shared_ptr<ArenaMemory> memory, void* data, int64_t bytes);

  std::shared_ptr<ArenaMemory> memory_;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

class Arena {
 public:
  // Of the lowest free memory that is large enough. 0 bytes is a slot without memory.
  Result<Slot> Allocate(int64_t bytes) const;

  int64_t capacity_bytes() const;
  int64_t used_bytes() const;  // slots rounded up to their alignment

 private:
  friend class Client;
  explicit Arena(std::shared_ptr<ArenaMemory> memory);

  std::shared_ptr<ArenaMemory> memory_;
};

}  // namespace rope::client

#endif  // ROPE_ARENA_H_
