// MemoryWatch: keeps the server's memory close to its budgets.
//
//   - Messages that are being read belong to no budget until they are complete. Their memory is
//     estimated as what the process holds minus what the budgets account for and what it held at
//     Start, such as the context of a GPU (unaccounted bytes). Above the budget for receiving,
//     reads of the owner whose reads take the longest end, until half of it should be left.
//   - A message that is not complete in time ends its call.
//   - Memory that a burst took goes back to the system: pool buffers and freed allocator memory
//     that were unused for kUnusedMs.
//
// A look is due each second, each 50 ms while a stream is open, each 20 ms while a message is being
// read, and each 5 ms while half of the budget is in use.
//
// Threading:  Look runs on one thread at a time; the counts on any.
// Ownership:  `reads`, `pool` and `clock` must outlive the watch.
#ifndef ROPE_SERVER_GRPC_MEMORY_WATCH_H_
#define ROPE_SERVER_GRPC_MEMORY_WATCH_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>

#include "absl/time/time.h"
#include "server/clients/buffer_pool.h"
#include "server/clock.h"
#include "server/grpc/poll_loop.h"

namespace rope::server {

class MemoryWatch {
 public:
  // Buffers and freed memory that were unused for this long go back.
  static constexpr int64_t kUnusedMs = 4000;

  // Access to the allocator and the system, replaced in tests.
  struct System {
    std::function<int64_t()> anonymous_bytes;  // resident, of the process
    std::function<int64_t()> accounted_bytes;  // the part that budgets have counted
    std::function<int64_t()> free_bytes;       // freed, kept by the allocator
    std::function<void()> trim;                // gives free_bytes back
  };
  struct Options {
    int64_t receive_bytes = 0;  // budget for messages being read
    absl::Duration receive_timeout = absl::InfiniteDuration();
  };

  MemoryWatch(const Options& options, System system, MessageReads& reads, BufferPool& pool,
              const Clock& clock);

  // Takes what the process holds now as its own. REQUIRES: before the first look.
  void Start() { own_bytes_ = UnaccountedBytes(); }
  // Returns the time until the next look is due.
  absl::Duration Look();

  // Resident anonymous memory of the process now.
  int64_t anonymous_bytes() const { return system_.anonymous_bytes(); }
  // The unaccounted bytes at the last look.
  int64_t receiving_bytes() const { return receiving_bytes_.load(std::memory_order_relaxed); }
  // Calls that were ended after receive_timeout.
  int64_t late_calls() const { return late_.load(); }
  // Calls that were ended for lack of memory.
  int64_t ended_calls() const { return pressure_.load(); }

 private:
  int64_t UnaccountedBytes() const;
  bool IsFarAbove(int64_t unaccounted_bytes) const {
    return unaccounted_bytes > options_.receive_bytes * 3 / 2;
  }
  void EndLateReads(absl::Time now);
  // Ends reads so that half of the budget should be left.
  void EndReads(int64_t unaccounted_bytes, absl::Time now);
  void GiveBack(absl::Time now);

  const Options options_;
  const System system_;
  MessageReads& reads_;
  BufferPool& pool_;
  const Clock& clock_;

  int64_t own_bytes_ = 0;  // set by Start

  // Confined to the thread that looks.
  absl::Time trimmed_ = absl::InfinitePast();
  absl::Time pool_trimmed_ = absl::InfinitePast();
  absl::Time sampled_ = absl::InfinitePast();
  std::deque<int64_t> free_samples_;  // free_bytes of the last kUnusedMs

  std::atomic<int64_t> receiving_bytes_ = 0;
  std::atomic<int64_t> late_ = 0;
  std::atomic<int64_t> pressure_ = 0;
};

// System by glibc's mallinfo2 and Linux's /proc.
MemoryWatch::System ProcessMemory(std::function<int64_t()> accounted_bytes);

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_MEMORY_WATCH_H_
