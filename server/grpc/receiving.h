// Receiving: the messages that are being read, so that a client which sends half of one, or many of
// them, holds memory for a bounded time. gRPC says nothing of a message before all of it is there.
//
// A reader enters a Read before it asks gRPC for a message and leaves when the message has come.
// MemoryWatch looks at what is under way, and ends reads: those that are past their time, and under
// pressure those of the session that has most of them.
//
// Threading:  Thread-safe. Reads are ended without a lock held.
// Ownership:  Refers to Reads between Enter and Leave; one that is being ended is retained.
#ifndef ROPE_SERVER_GRPC_RECEIVING_H_
#define ROPE_SERVER_GRPC_RECEIVING_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/mutex.h"
#include "server/clock.h"

namespace rope::server {

class Receiving {
 public:
  // One message that is being read.
  class Read {
   public:
    virtual ~Read() = default;

   protected:
    // `may_idle`: no message may be under way at all, as on a stream that is open and silent, so
    // that time says nothing.
    explicit Read(bool may_idle) : may_idle_(may_idle) {}
    // Ends the call, on any thread; nothing where its message has come meanwhile.
    virtual void EndRead(const absl::Status& status) = 0;
    // The same at once, without a word to the client, who has not taken it in time.
    virtual void AbortRead() = 0;
    // Between the two, the read is not destroyed.
    virtual void Retain() = 0;
    virtual void Release() = 0;

   private:
    friend class Receiving;
    const bool may_idle_;
    uint64_t session_ = 0;
    absl::Time began_;
    absl::Time ended_ = absl::InfiniteFuture();  // when EndRead was called
    bool entered_ = false;
    Read* older_ = nullptr;
    Read* newer_ = nullptr;
  };

  // What is under way.
  struct Reads {
    int64_t all = 0;
    int64_t late = 0;  // those that began before a certain time and cannot be idle
    absl::Time oldest = absl::InfiniteFuture();  // that cannot be idle
  };

  // `clock` must outlive it.
  explicit Receiving(const Clock& clock);

  void Enter(Read& read, uint64_t session);
  void Leave(Read& read);

  int64_t count() const { return count_.load(std::memory_order_relaxed); }
  // True where a read was entered since the last call that said so: its message may have come by
  // now, which shows at the next look at the queue.
  bool HasNew() {
    return has_new_.load(std::memory_order_relaxed) &&
           has_new_.exchange(false, std::memory_order_relaxed);
  }
  // `late_before`: what began before is late.
  Reads Look(absl::Time late_before) const;
  // Aborts those that were ended before and are still there.
  void AbortEnded(absl::Time before);
  // Ends the reads that began before and cannot be idle. Returns how many.
  int64_t EndSince(absl::Time before, const absl::Status& status);
  // Ends those that began before of the session that has most of them; of several, of the one that
  // began last. Returns how many.
  int64_t EndOfGreediest(absl::Time before, const absl::Status& status);

 private:
  using Chosen = std::vector<Read*>;

  static bool IsEnded(const Read& read) { return read.ended_ < absl::InfiniteFuture(); }

  // Retains the read for End.
  void Choose(Read& read, Chosen& chosen) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static int64_t End(const Chosen& chosen, const absl::Status& status);

  const Clock& clock_;
  std::atomic<int64_t> count_ = 0;
  std::atomic<bool> has_new_ = false;
  mutable proto::Mutex mutex_;
  Read* oldest_ ABSL_GUARDED_BY(mutex_) = nullptr;
  Read* newest_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_RECEIVING_H_
