// MemoryWatch: a thread that keeps the server's memory near what its budgets say.
//
//   - Messages that are being read belong to no budget before they are there: they are what the
//     process holds and no budget accounts for. Where that passes the budget for receiving, or half
//     of it while late messages pass it that each count as the largest one, the reads of the
//     greediest session end.
//   - A message that does not come in time ends its call.
//   - What a burst took goes back to the system: buffers of the pool and freed memory of the
//     allocator that lay unused for kUnusedMs.
//
// The thread sleeps for a second where no message is being read, and for milliseconds where one is.
//
// Threading:  Tick on one thread at a time; Wake and refusals on any.
// Ownership:  Everything in Parts must outlive it.
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
#include "server/grpc/receiving.h"
#include "server/memory/buffer_pool.h"

namespace rope::server {

class MemoryWatch {
 public:
  // Buffers and freed memory that lay unused for so long go back.
  static constexpr int64_t kUnusedMs = 4000;

  // The allocator and the system, as far as they matter here.
  struct System {
    std::function<int64_t()> anonymous_bytes;  // that the process holds
    std::function<int64_t()> accounted_bytes;  // of these, what budgets have counted
    std::function<int64_t()> free_bytes;       // that the allocator keeps for itself
    std::function<void()> trim;                // gives these back
  };
  struct Options {
    int64_t receive_bytes = 0;  // for messages that are being read
    int64_t message_bytes = 0;  // the largest message
    absl::Duration receive_timeout = absl::InfiniteDuration();
  };
  // Reads that were ended.
  struct Refusals {
    int64_t late = 0;      // past the time for a message
    int64_t pressure = 0;  // for want of memory
  };

  MemoryWatch(const Options& options, System system, Receiving& receiving, BufferPool& pool,
              const Clock& clock);
  // Stops the thread.
  ~MemoryWatch();

  // Starts the thread. REQUIRES: called once at most.
  void Start();

  // Looks once. Returns how long nothing needs to be looked at.
  absl::Duration Tick();

  // A message is being read: the next look is due in milliseconds. Cheap where it is already.
  void Wake() {
    if (rests_.load(std::memory_order_relaxed)) WakeUp();
  }

  // What the process holds now.
  int64_t anonymous_bytes() const { return system_.anonymous_bytes(); }
  // Bytes that late messages count as, at the last look.
  int64_t receiving_bytes() const { return receiving_bytes_.load(std::memory_order_relaxed); }
  Refusals refusals() const { return {late_.load(), pressure_.load()}; }

 private:
  void Loop();
  void WakeUp();
  int64_t UnaccountedBytes() const;
  void EndReads(absl::Time now, const Receiving::Reads& reads);
  // Gives back what lay unused.
  void GiveBack(absl::Time now);

  const Options options_;
  const System system_;
  Receiving& receiving_;
  BufferPool& pool_;
  const Clock& clock_;

  // Of the thread that ticks.
  int64_t unaccounted_bytes_ = 0;
  absl::Time trimmed_ = absl::InfinitePast();
  absl::Time pool_trimmed_ = absl::InfinitePast();
  absl::Time sampled_ = absl::InfinitePast();
  std::deque<int64_t> free_samples_;  // of the last kUnusedMs

  std::atomic<int64_t> receiving_bytes_ = 0;
  std::atomic<int64_t> late_ = 0;
  std::atomic<int64_t> pressure_ = 0;
  std::atomic<bool> rests_ = false;  // the thread sleeps for long

  proto::Mutex mutex_;
  proto::CondVar wake_;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// What glibc and Linux say.
MemoryWatch::System ProcessMemory(std::function<int64_t()> accounted_bytes);

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_MEMORY_WATCH_H_
