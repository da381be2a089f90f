// ArenaMemory: a first-fit allocator over a SharedMemory.
//
//   a range:  free -> Allocate -> used -> GiveBack -> free
//                                      -> Lose     -> never free again
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
  // Rounds up to a multiple of kAlignment. REQUIRES: 0 <= bytes <= INT64_MAX - kAlignment.
  static int64_t RoundedUp(int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  // Null: an arena of 0 bytes.
  explicit ArenaMemory(std::unique_ptr<SharedMemory> shared);

  // REQUIRES: bytes > 0.
  Result<std::byte*> Allocate(int64_t bytes);
  // Frees a range. REQUIRES: Allocate returned `data` for the same `bytes`.
  void GiveBack(std::byte* data, int64_t bytes);
  // Called instead of GiveBack when the server may still write to the range: it stays used.
  void Lose(int64_t bytes) { lost_bytes_.fetch_add(RoundedUp(bytes), std::memory_order_relaxed); }

  const SharedMemory* shared() const { return shared_.get(); }  // null: 0 bytes
  int64_t capacity_bytes() const { return shared_ == nullptr ? 0 : shared_->bytes(); }
  int64_t used_bytes() const;  // includes lost bytes
  int64_t lost_bytes() const { return lost_bytes_.load(std::memory_order_relaxed); }

  // Offset of [data, data + bytes) in the arena; nullopt if any of it lies outside.
  std::optional<int64_t> OffsetOf(const void* data, int64_t bytes) const;

 private:
  const std::unique_ptr<SharedMemory> shared_;
  std::atomic<int64_t> lost_bytes_ = 0;
  mutable proto::Mutex mu_;
  std::map<int64_t, int64_t> free_ ABSL_GUARDED_BY(mu_);  // offset -> bytes; no two ranges touch
  int64_t used_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_MEMORY_ARENA_MEMORY_H_
