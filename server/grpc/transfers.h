// Transfers: a list of messages that are under way between the server and its clients. The server
// has two. One holds the messages that are being read: gRPC reports a message only when it is
// complete, so a client that sends half of one holds memory. The other holds large replies that
// their clients have not taken.
//
// A call enters a Transfer before it asks gRPC to read or to write, and it leaves when the message
// has come or the reply was taken. MemoryWatch ends reads that are older than --receive_timeout,
// and where memory is short transfers of the session with the most of them.
//
//   Enter -> in the list -+- Leave (done)
//                         +- End (once) --- no end after a grace period ---> AbortTransfer
//                            the transfer stays in the list until its call leaves
//
// Threading:  Thread-safe. No lock is held while a transfer is ended. Retain is called under mutex_
//             and takes no lock; see the lock order in server/README.md.
// Ownership:  Refers to Transfers between Enter and Leave. Retains a transfer while it ends it.
#ifndef ROPE_SERVER_GRPC_TRANSFERS_H_
#define ROPE_SERVER_GRPC_TRANSFERS_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/mutex.h"
#include "server/clock.h"

namespace rope::server {

class Transfers {
 public:
  // One message.
  class Transfer {
   public:
    virtual ~Transfer() = default;

   protected:
    // `may_idle`: the client may legally send nothing, as on an open stream. Such a transfer is
    // never late.
    explicit Transfer(bool may_idle) : may_idle_(may_idle) {}
    // Ends the call, on any thread. Does nothing if the transfer is done meanwhile.
    virtual void EndTransfer(const absl::Status& status) = 0;
    // Cancels the call without a status for the client, which has not taken the end in time.
    virtual void AbortTransfer() = 0;
    // Between Retain and Release the transfer is not destroyed.
    virtual void Retain() = 0;
    virtual void Release() = 0;

   private:
    friend class Transfers;
    const bool may_idle_;
    uint64_t session_ = 0;
    absl::Time began_;
    absl::Time ended_ = absl::InfiniteFuture();  // when EndTransfer was called
    bool entered_ = false;
    Transfer* older_ = nullptr;
    Transfer* newer_ = nullptr;
  };

  // Counts of the transfers in the list.
  struct Counts {
    int64_t all = 0;
    int64_t late = 0;                            // began before `late_before`, and not may_idle
    absl::Time oldest = absl::InfiniteFuture();  // start of the oldest that is not may_idle
  };

  // `clock` must outlive the list.
  explicit Transfers(const Clock& clock);

  void Enter(Transfer& transfer, uint64_t session);
  void Leave(Transfer& transfer);

  int64_t count() const { return count_.load(std::memory_order_relaxed); }
  // Returns whether a transfer was entered since the last call that returned true. A new one may be
  // done by now, so the caller should poll its queue again.
  bool HasNew() {
    return has_new_.load(std::memory_order_relaxed) &&
           has_new_.exchange(false, std::memory_order_relaxed);
  }
  // Counts the transfers. Those that began before `late_before` are late.
  Counts Look(absl::Time late_before) const;
  // Aborts the transfers that were ended before `before` and are still in the list.
  void AbortEnded(absl::Time before);
  // Ends the transfers that began before `before` and are not may_idle. Returns their number.
  int64_t EndSince(absl::Time before, const absl::Status& status);
  // Ends the transfers that began before `before`, of the session that has the most such transfers.
  // If several sessions have equally many, takes the one whose transfer began last. Returns their
  // number.
  int64_t EndOfGreediest(absl::Time before, const absl::Status& status);

 private:
  using Chosen = std::vector<Transfer*>;

  static bool IsEnded(const Transfer& transfer) { return transfer.ended_ < absl::InfiniteFuture(); }

  // Marks the transfer as ended, retains it, and adds it to `chosen`.
  void Choose(Transfer& transfer, Chosen& chosen) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static int64_t End(const Chosen& chosen, const absl::Status& status);

  const Clock& clock_;
  std::atomic<int64_t> count_ = 0;
  std::atomic<bool> has_new_ = false;
  mutable proto::Mutex mutex_;
  Transfer* oldest_ ABSL_GUARDED_BY(mutex_) = nullptr;
  Transfer* newest_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

// UntakenReply: the reply of a call, in a list of transfers until the client has taken it. Ending
// it cancels the call.
//
// Threading:  Enter and Leave as in Transfers.
// Ownership:  A member of its call, which has Cancel(), and Retain() and Release() as a transfer.

template <typename Call>
class UntakenReply final : private Transfers::Transfer {
 public:
  explicit UntakenReply(Call& call) : Transfers::Transfer(/*may_idle=*/false), call_(call) {}

  // Before the reply is written. `list`: null for none.
  void Enter(Transfers* list, uint64_t session) {
    list_ = list;
    if (list_ != nullptr) list_->Enter(*this, session);
  }
  // Whether it is in a list.
  bool entered() const { return list_ != nullptr; }
  // After the reply was taken, or was not entered.
  void Leave() {
    if (list_ != nullptr) list_->Leave(*this);
    list_ = nullptr;
  }

 private:
  void EndTransfer(const absl::Status&) override { call_.Cancel(); }
  void AbortTransfer() override { call_.Cancel(); }
  void Retain() override { call_.Retain(); }
  void Release() override { call_.Release(); }

  Call& call_;
  Transfers* list_ = nullptr;  // that the reply is in
};

}  // namespace rope::server

#endif  // ROPE_SERVER_GRPC_TRANSFERS_H_
