// MemoryWatch: a thread that keeps the server's memory close to its budgets.
//
//   - Messages that are being read belong to no budget until they are complete. Their memory is
//     estimated as what the process holds minus what the budgets account for and what it held at
//     Start, such as the context of a GPU (unaccounted bytes).
//     The reads of the session with the most of them end in two cases: the unaccounted bytes
//     exceed the budget for receiving; or they exceed half of it, and late messages, counted at the
//     largest message size each, exceed it.
//   - A message that is not complete in time ends its call.
//   - Replies count as admitted bytes until their clients have taken them. While requests are
//     refused because these bytes are used up, or the unaccounted bytes exceed their budget,
//     replies that were not taken for kUntakenMs are cancelled, of the session with the most of
//     them.
//   - Memory that a burst took goes back to the system: pool buffers and freed allocator memory
//     that were unused for kUnusedMs.
//
//   sleeps 1 s --- a read begins (Wake) ---> 20 ms periods --- half the budget in use ---> 5 ms
//
// The periods get longer again as soon as the reason for the shorter one has gone.
//
// Threading:  Tick runs on one thread at a time; Wake and refusals on any.
// Ownership:  `receiving`, `untaken`, `pool` and `clock` must outlive the watch.
#ifndef ROPE_SERVER_GRPC_MEMORY_WATCH_H_
#define ROPE_SERVER_GRPC_MEMORY_WATCH_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "proto/mutex.h"
#include "server/clock.h"
#include "server/grpc/transfers.h"
#include "server/memory/buffer_pool.h"

namespace rope::server {

class MemoryWatch {
 public:
  // Buffers and freed memory that were unused for this long go back.
  static constexpr int64_t kUnusedMs = 4000;
  static constexpr int64_t kUntakenMs = 5000;

  // Access to the allocator and the system, replaced in tests.
  struct System {
    std::function<int64_t()> anonymous_bytes;  // resident, of the process
    std::function<int64_t()> accounted_bytes;  // the part that budgets have counted
    std::function<int64_t()> free_bytes;       // freed, kept by the allocator
    std::function<void()> trim;                // gives free_bytes back
    std::function<int64_t()> refused;          // requests, because admitted bytes were used up
  };
  struct Options {
    int64_t receive_bytes = 0;  // budget for messages being read
    int64_t message_bytes = 0;  // the largest message
    absl::Duration receive_timeout = absl::InfiniteDuration();
  };
  // Counts of ended reads, and of cancelled replies.
  struct Refusals {
    int64_t late = 0;      // after receive_timeout
    int64_t pressure = 0;  // out of memory
    int64_t untaken = 0;   // replies that were cancelled
  };

  // `receiving`: the messages that are being read. `untaken`: large replies.
  MemoryWatch(const Options& options, System system, Transfers& receiving, Transfers& untaken,
              BufferPool& pool, const Clock& clock);
  // Stops the thread.
  ~MemoryWatch();

  // Takes what the process holds now as its own, and starts the thread. REQUIRES: called once at
  // most.
  void Start();

  // Does one round of checks. Returns the time until the next round is due.
  absl::Duration Tick();

  // Tells the thread that a message is being read: its next round is due in milliseconds. Cheap if
  // the thread is in short periods already.
  void Wake() {
    if (rests_.load(std::memory_order_relaxed)) WakeUp();
  }

  // Resident anonymous memory of the process now.
  int64_t anonymous_bytes() const { return system_.anonymous_bytes(); }
  // Late messages times the largest message size, at the last round.
  int64_t receiving_bytes() const { return receiving_bytes_.load(std::memory_order_relaxed); }
  Refusals refusals() const { return {late_.load(), pressure_.load(), untaken_.load()}; }

 private:
  void Loop();
  void WakeUp();
  int64_t UnaccountedBytes() const;
  void EndReads(absl::Time now, const Transfers::Counts& reads);
  void CancelReplies(absl::Time now);
  // Gives unused memory back to the system.
  void GiveBack(absl::Time now);

  const Options options_;
  const System system_;
  Transfers& receiving_;
  Transfers& untaken_replies_;
  BufferPool& pool_;
  const Clock& clock_;

  int64_t own_bytes_ = 0;  // set by Start

  // Confined to the thread that ticks.
  int64_t unaccounted_bytes_ = 0;
  int64_t refused_ = 0;  // at the last round
  absl::Time trimmed_ = absl::InfinitePast();
  absl::Time pool_trimmed_ = absl::InfinitePast();
  absl::Time sampled_ = absl::InfinitePast();
  std::deque<int64_t> free_samples_;  // free_bytes of the last kUnusedMs

  std::atomic<int64_t> receiving_bytes_ = 0;
  std::atomic<int64_t> late_ = 0;
  std::atomic<int64_t> pressure_ = 0;
  std::atomic<int64_t> untaken_ = 0;
  std::atomic<bool> rests_ = false;  // the thread is in its long sleep

  proto::Mutex mutex_;
  proto::CondVar wake_;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// System by glibc's mallinfo2 and Linux's /proc.
MemoryWatch::System ProcessMemory(std::function<int64_t()> accounted_bytes,
                                  std::function<int64_t()> refused);

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_MEMORY_WATCH_H_
