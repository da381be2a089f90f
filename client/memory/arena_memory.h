// ArenaMemory: which parts of a SharedMemory are free, used, or lost.
//
// Threading:  Thread-safe.
// Ownership:  Owns the memory.
// Errors:     As arena.h.
#ifndef ROPE_CLIENT_MEMORY_ARENA_MEMORY_H_
#define ROPE_CLIENT_MEMORY_ARENA_MEMORY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "client/memory/shared_memory.h"
#include "proto/mutex.h"
#include "rope/status.h"

namespace rope::client {

class ArenaMemory {
 public:
  static constexpr int64_t kAlignment = 64;
  // To whole units of it. REQUIRES: 0 <= bytes <= INT64_MAX - kAlignment.
  static int64_t RoundedUp(int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  // Null: of no memory.
  explicit ArenaMemory(std::unique_ptr<SharedMemory> shared);

  // REQUIRES: bytes > 0.
  Result<std::byte*> Allocate(int64_t bytes);
  // What Take gave, with the same size.
  void GiveBack(std::byte* data, int64_t bytes);
  // In place of GiveBack: so many bytes of what Take gave are never free again.
  void Lose(int64_t bytes) { lost_bytes_.fetch_add(RoundedUp(bytes), std::memory_order_relaxed); }

  const SharedMemory* shared() const { return shared_.get(); }  // null: of no memory
  int64_t capacity_bytes() const { return shared_ == nullptr ? 0 : shared_->bytes(); }
  int64_t used_bytes() const;  // what is lost counts too
  int64_t lost_bytes() const { return lost_bytes_.load(std::memory_order_relaxed); }

  // Where the memory from `data` on begins in the arena, if all of it lies there.
  std::optional<int64_t> OffsetOf(const void* data, int64_t bytes) const;

 private:
  const std::unique_ptr<SharedMemory> shared_;
  std::atomic<int64_t> lost_bytes_ = 0;
  mutable proto::Mutex mu_;
  std::map<int64_t, int64_t> free_
      ABSL_GUARDED_BY(mu_);  // offset -> bytes, with used memory in between
  int64_t used_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_MEMORY_ARENA_MEMORY_H_
