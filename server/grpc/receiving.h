// Receiving: the list of messages that are being read. It bounds the time for which a client that
// sends half of a message, or half of many, holds memory: gRPC reports a message only when it is
// complete.
//
// A call enters its Read before it asks gRPC for a message, and leaves when the message has come.
// MemoryWatch ends reads: those past their time, and under memory pressure those of the session
// that has the most of them.
//
//   Enter -> in the list -+- Leave (the message has come)
//                         +- EndRead (once) --- no end after a grace period ---> AbortRead
//                            the read stays in the list until its call leaves
//
// Threading:  Thread-safe. No lock is held while a read is ended. Retain is called under mutex_ and
//             may take the lock of its call; see the lock order in server/README.md.
// Ownership:  Refers to Reads between Enter and Leave. Retains a read while it ends it.
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
    // `may_idle`: the client may legally send nothing, as on an open stream. Such a read is never
    // late.
    explicit Read(bool may_idle) : may_idle_(may_idle) {}
    // Ends the call, on any thread. Does nothing if its message has come meanwhile.
    virtual void EndRead(const absl::Status& status) = 0;
    // Cancels the call without a status for the client, which has not taken the end in time.
    virtual void AbortRead() = 0;
    // Between Retain and Release the read is not destroyed.
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

  // Counts of the reads in the list.
  struct Reads {
    int64_t all = 0;
    int64_t late = 0;                            // began before `late_before`, and not may_idle
    absl::Time oldest = absl::InfiniteFuture();  // start of the oldest that is not may_idle
  };

  // `clock` must outlive the list.
  explicit Receiving(const Clock& clock);

  void Enter(Read& read, uint64_t session);
  void Leave(Read& read);

  int64_t count() const { return count_.load(std::memory_order_relaxed); }
  // Returns whether a read was entered since the last call that returned true. The message of a new
  // read may have come by now, so the caller should poll its queue again.
  bool HasNew() {
    return has_new_.load(std::memory_order_relaxed) &&
           has_new_.exchange(false, std::memory_order_relaxed);
  }
  // Counts the reads. Reads that began before `late_before` are late.
  Reads Look(absl::Time late_before) const;
  // Aborts the reads that were ended before `before` and are still in the list.
  void AbortEnded(absl::Time before);
  // Ends the reads that began before `before` and are not may_idle. Returns their number.
  int64_t EndSince(absl::Time before, const absl::Status& status);
  // Ends the reads that began before `before`, of the session that has the most such reads. If
  // several sessions have equally many, takes the one whose read began last. Returns their number.
  int64_t EndOfGreediest(absl::Time before, const absl::Status& status);

 private:
  using Chosen = std::vector<Read*>;

  static bool IsEnded(const Read& read) { return read.ended_ < absl::InfiniteFuture(); }

  // Marks the read as ended, retains it, and adds it to `chosen`.
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
