// Arena: memory that the client shares with its server, handed out as slots.
//
// A tensor whose memory lies in a slot is not sent: the request carries its offset and size. This
// holds for every kind of call and every tensor size. If the connection has no shared memory, the
// same program still works: the bytes of the tensors then travel in the message.
//
//   1. client = Client::Connect(target, {.arena_bytes = 64 << 20})
//   2. slot = client.arena().Allocate(bytes); keep it for the life of the layer
//   3. each step: write q into slot.data() -> Rotate, in place or into another slot -> read
//
// While a call is in flight, the server reads and writes the call's slots. A call that ends before
// the server has answered (DEADLINE_EXCEEDED, CANCELLED, connection lost) may leave the server at
// work on them; Status::detail().may_have_executed is then true. Do not reuse these slots until
// Client::Fence has returned OK.
//
// Threading:  Arena is thread-safe; copies share the same memory. Slot is thread-compatible.
// Ownership:  A slot returns its memory in its destructor and keeps the arena mapped until then.
//             REQUIRES: no call in flight uses a slot that is destroyed.
// Errors:     INVALID_ARGUMENT: a negative size. RESOURCE_EXHAUSTED: no free range is large
//             enough; destroying other slots may make room.
// Limits:     The capacity is ConnectOptions::arena_bytes, rounded up to whole pages; it never
//             grows. Slots are aligned to 64 bytes.
#ifndef ROPE_ARENA_H_
#define ROPE_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "rope/options.h"
#include "rope/status.h"

namespace rope::client {

class ArenaMemory;

// Memory that the program has already: part of a file that it can map, such as a memfd. See
// Client::ImportMemory.
struct MemoryFile {
  int fd = -1;         // borrowed; the library keeps a duplicate
  int64_t offset = 0;  // in bytes, of the part
  int64_t bytes = 0;   // > 0, of the part
  // Where the program has mapped the part, to read and write. Null: the library maps it.
  void* mapped = nullptr;
};

// Imported memory. While a copy of it exists, requests whose tensors all lie in it are rotated
// there. REQUIRES: no call in flight uses it when the last copy is destroyed, and a mapping of the
// program's outlives that copy. After a call that may have executed, Client::Fence comes first.
class ImportedMemory {
 public:
  // `held` keeps the memory imported.
  ImportedMemory(void* data, int64_t bytes, ChosenTransport transport, std::shared_ptr<void> held)
      : data_(data), bytes_(bytes), transport_(std::move(transport)), held_(std::move(held)) {}

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  // Of the time of the import. kRing or kMemfd: the server works in this memory. kInline: it does
  // not, for this reason; tensors in it are copied like those in any other memory.
  const ChosenTransport& transport() const { return transport_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  ChosenTransport transport_;
  std::shared_ptr<void> held_;
};

class Slot {
 public:
  Slot() = default;  // empty: data() is null, bytes() is 0

  void* data() const { return range_.get(); }
  int64_t bytes() const { return range_ == nullptr ? 0 : range_.get_deleter().bytes; }

 private:
  friend class Arena;
  friend class StagedRun;  // which has such a range too
  struct GiveBack {
    std::shared_ptr<ArenaMemory> memory;
    int64_t bytes;
    void operator()(std::byte* data) const;
  };

  std::unique_ptr<std::byte, GiveBack> range_;
};

class Arena {
 public:
  // An arena that no server shares: for a Connection of another kind than the library's, such as a
  // mock. RESOURCE_EXHAUSTED: not enough memory. INVALID_ARGUMENT: a negative size.
  static Result<Arena> CreateLocal(int64_t bytes);

  // Takes the lowest free range that is large enough. 0 bytes returns an empty slot.
  Result<Slot> Allocate(int64_t bytes) const;

  int64_t capacity_bytes() const;
  int64_t used_bytes() const;  // each slot rounded up to 64 bytes
  // The arena's memfd, sealed against shrinking and growing, which the arena owns; -1: no memory.
  int fd() const;

 private:
  friend class RemoteConnection;
  explicit Arena(std::shared_ptr<ArenaMemory> memory);

  std::shared_ptr<ArenaMemory> memory_;
};

}  // namespace rope::client

#endif  // ROPE_ARENA_H_
