// MemoryWatch: a thread that keeps the server's memory close to its budgets. In each round it lets
// ConnectionWatch look.
//
//   - Messages that are being read belong to no budget until they are complete. Their memory is
//     estimated as what the process holds minus what the budgets account for and what it held at
//     Start, such as the context of a GPU (unaccounted bytes). Above the budget for receiving,
//     reads of the owner whose reads take the longest end, until half of it should be left.
//   - A message that is not complete in time ends its call.
//   - Replies count as admitted bytes until their clients have taken them. While requests are
//     refused because these bytes are used up, or the unaccounted bytes exceed their budget,
//     connections that do not take theirs are shut down.
//   - Memory that a burst took goes back to the system: pool buffers and freed allocator memory
//     that were unused for kUnusedMs.
//
//   a round each second
//     --- a read begins (Wake) ---> each 20 ms
//     --- half the budget in use ---> 5 ms
//
// The periods get longer again as soon as the reason for the shorter one has gone.
//
// Threading:  Tick runs on one thread at a time; Wake and refusals on any.
// Ownership:  `reads`, `connections`, `pool` and `clock` must outlive the watch.
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
#include "server/clients/buffer_pool.h"
#include "server/clients/connection_watch.h"
#include "server/clock.h"
#include "server/grpc/queue_call.h"

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
    std::function<int64_t()> refused;          // requests, because admitted bytes were used up
  };
  struct Options {
    int64_t receive_bytes = 0;  // budget for messages being read
    absl::Duration receive_timeout = absl::InfiniteDuration();
  };

  MemoryWatch(const Options& options, System system, MessageReads& reads,
              ConnectionWatch& connections, BufferPool& pool, const Clock& clock);
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
  // The unaccounted bytes of the last round.
  int64_t receiving_bytes() const { return receiving_bytes_.load(std::memory_order_relaxed); }
  // Calls that were ended after receive_timeout.
  int64_t late_calls() const { return late_.load(); }
  // Calls that were ended for lack of memory.
  int64_t ended_calls() const { return pressure_.load(); }

 private:
  void Loop();
  void WakeUp();
  int64_t UnaccountedBytes() const;
  // Sleeps for at most `rest`. False: stopped.
  bool Rest(absl::Duration rest);
  void EndLateReads(absl::Time now);
  // `of_anybody`: as MessageReads::EndOfGreediest.
  void EndReads(absl::Time now, bool of_anybody);
  // Gives unused memory back to the system.
  void GiveBack(absl::Time now);

  const Options options_;
  const System system_;
  MessageReads& reads_;
  ConnectionWatch& connections_;
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
