#include "server/grpc/transfers.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "kernels/check.h"

namespace rope::server {

// The transfers form a doubly linked list through their own members, ordered by the time at which
// they began: Enter appends to the newest end, so a walk from oldest_ can stop at the first that
// began too late. Enter and Leave are O(1) and allocate nothing, because every message pays for
// them.
//
// Ending takes two steps. Under mutex_, Choose marks and retains: a transfer in the list is alive,
// and Retain keeps it alive after the lock. Without the lock, EndTransfer calls into gRPC and
// Release may delete the call.

Transfers::Transfers(const Clock& clock) : clock_(clock) {}

void Transfers::Enter(Transfer& transfer, uint64_t session) {
  transfer.session_ = session;
  transfer.began_ = clock_.Now();
  proto::MutexLock lock(&mutex_);
  ROPE_CHECK(!transfer.entered_);
  transfer.entered_ = true;
  transfer.ended_ = absl::InfiniteFuture();
  transfer.older_ = newest_;
  transfer.newer_ = nullptr;
  (newest_ == nullptr ? oldest_ : newest_->newer_) = &transfer;
  newest_ = &transfer;
  count_.fetch_add(1, std::memory_order_relaxed);
  has_new_.store(true, std::memory_order_relaxed);
}

void Transfers::Leave(Transfer& transfer) {
  proto::MutexLock lock(&mutex_);
  if (!transfer.entered_) return;
  transfer.entered_ = false;
  (transfer.older_ == nullptr ? oldest_ : transfer.older_->newer_) = transfer.newer_;
  (transfer.newer_ == nullptr ? newest_ : transfer.newer_->older_) = transfer.older_;
  count_.fetch_sub(1, std::memory_order_relaxed);
}

Transfers::Counts Transfers::Look(absl::Time late_before) const {
  Counts counts;
  proto::MutexLock lock(&mutex_);
  for (const Transfer* transfer = oldest_; transfer != nullptr; transfer = transfer->newer_) {
    ++counts.all;
    if (transfer->may_idle_ || IsEnded(*transfer)) continue;
    counts.oldest = std::min(counts.oldest, transfer->began_);
    if (transfer->began_ < late_before) ++counts.late;
  }
  return counts;
}

void Transfers::Choose(Transfer& transfer, Chosen& chosen) {
  transfer.ended_ = clock_.Now();
  transfer.Retain();
  chosen.push_back(&transfer);
}

int64_t Transfers::End(const Chosen& chosen, const absl::Status& status) {
  for (Transfer* transfer : chosen) {
    transfer->EndTransfer(status);
    transfer->Release();
  }
  return static_cast<int64_t>(chosen.size());
}

void Transfers::AbortEnded(absl::Time before) {
  Chosen chosen;
  {
    proto::MutexLock lock(&mutex_);
    for (Transfer* transfer = oldest_; transfer != nullptr; transfer = transfer->newer_) {
      if (transfer->ended_ < before) Choose(*transfer, chosen);
    }
  }
  for (Transfer* transfer : chosen) {
    transfer->AbortTransfer();
    transfer->Release();
  }
}

int64_t Transfers::EndSince(absl::Time before, const absl::Status& status) {
  Chosen chosen;
  {
    proto::MutexLock lock(&mutex_);
    for (Transfer* transfer = oldest_; transfer != nullptr && transfer->began_ < before;
         transfer = transfer->newer_) {
      if (!transfer->may_idle_ && !IsEnded(*transfer)) Choose(*transfer, chosen);
    }
  }
  return End(chosen, status);
}

int64_t Transfers::EndOfGreediest(absl::Time before, const absl::Status& status) {
  Chosen chosen;
  {
    proto::MutexLock lock(&mutex_);
    absl::flat_hash_map<uint64_t, int64_t> transfers;  // by session
    uint64_t greediest = 0;
    int64_t most = 0;
    for (Transfer* transfer = oldest_; transfer != nullptr && transfer->began_ < before;
         transfer = transfer->newer_) {
      if (IsEnded(*transfer)) continue;
      const int64_t count = ++transfers[transfer->session_];
      if (count < most) continue;
      most = count;
      greediest = transfer->session_;
    }
    if (most == 0) return 0;
    for (Transfer* transfer = oldest_; transfer != nullptr && transfer->began_ < before;
         transfer = transfer->newer_) {
      if (transfer->session_ == greediest && !IsEnded(*transfer)) Choose(*transfer, chosen);
    }
  }
  return End(chosen, status);
}

}  // namespace rope::server
