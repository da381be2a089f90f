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
#include <utility>

#include "absl/base/thread_annotations.h"
#include "client/memory/shared_memory.h"
#include "proto/mutex.h"
#include "rope/arena.h"
#include "rope/status.h"

namespace rope::client {

class ArenaMemory {
 public:
  static constexpr int64_t kAlignment = 64;
  // Rounds up to a multiple of kAlignment. REQUIRES: 0 <= bytes <= INT64_MAX - kAlignment.
  static int64_t RoundedUp(int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  // As SharedMemory::CreateMemfd. 0 bytes: an arena without memory.
  static Result<std::shared_ptr<ArenaMemory>> Create(int64_t bytes, SharedMemory::Use use);
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

  // Offset of [data, data + bytes) in the file; nullopt if any of it lies outside of the memory.
  std::optional<int64_t> OffsetOf(const void* data, int64_t bytes) const;

 private:
  const std::unique_ptr<SharedMemory> shared_;
  std::atomic<int64_t> lost_bytes_ = 0;
  mutable proto::Mutex mu_;
  std::map<int64_t, int64_t> free_ ABSL_GUARDED_BY(mu_);  // offset -> bytes; no two ranges touch
  int64_t used_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

// StagedRun: the staging memory of one request, from its encoding until the results are copied out.
//
// A call that ends before the server has answered may leave the server at work on the run. Staging
// memory has no fence (fence.h), so such a run is lost: no other request gets it. Once half of a
// connection's staging memory is lost, Connector replaces the connection by one with new memory.
//
// Threading:  Thread-compatible.
// Ownership:  Owns the run and shares the memory that contains it.

class StagedRun {
 public:
  StagedRun() = default;  // empty
  // nullopt: no free range is large enough.
  static std::optional<StagedRun> Allocate(std::shared_ptr<ArenaMemory> memory, int64_t bytes) {
    const Result<std::byte*> data = memory->Allocate(bytes);
    if (!data.ok()) return std::nullopt;
    StagedRun run;
    run.range_ = {*data, Slot::GiveBack{std::move(memory), bytes}};
    return run;
  }

  std::byte* data() const { return range_.get(); }

  // Called when the request failed with `status`. The run is lost, unless the status proves that
  // the server has finished with it: kInternal and kUnknown prove nothing.
  void NoteFailure(const Status& status) {
    const bool is_servers_word = !status.detail().may_have_executed &&
                                 status.code() != StatusCode::kInternal &&
                                 status.code() != StatusCode::kUnknown;
    if (range_ == nullptr || is_servers_word) return;
    range_.get_deleter().memory->Lose(range_.get_deleter().bytes);
    static_cast<void>(range_.release());
  }

 private:
  std::unique_ptr<std::byte, Slot::GiveBack> range_;
};

}  // namespace rope::client

#endif  // ROPE_CLIENT_MEMORY_ARENA_MEMORY_H_
