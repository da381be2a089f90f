#include "server/grpc/receiving.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "kernels/check.h"

namespace rope::server {

// The reads form a doubly linked list through their own members, ordered by the time at which they
// began: Enter appends to the newest end, so a walk from oldest_ can stop at the first read that
// began too late. Enter and Leave are O(1) and allocate nothing, because every message pays for
// them.
//
// Ending reads takes two steps. Under mutex_, Choose marks and retains them: a read in the list is
// alive, and Retain keeps it alive after the lock. Without the lock, EndRead calls into gRPC and
// Release may delete the call.

Receiving::Receiving(const Clock& clock) : clock_(clock) {}

void Receiving::Enter(Read& read, uint64_t session) {
  read.session_ = session;
  read.began_ = clock_.Now();
  proto::MutexLock lock(&mutex_);
  ROPE_CHECK(!read.entered_);
  read.entered_ = true;
  read.ended_ = absl::InfiniteFuture();
  read.older_ = newest_;
  read.newer_ = nullptr;
  (newest_ == nullptr ? oldest_ : newest_->newer_) = &read;
  newest_ = &read;
  count_.fetch_add(1, std::memory_order_relaxed);
  has_new_.store(true, std::memory_order_relaxed);
}

void Receiving::Leave(Read& read) {
  proto::MutexLock lock(&mutex_);
  if (!read.entered_) return;
  read.entered_ = false;
  (read.older_ == nullptr ? oldest_ : read.older_->newer_) = read.newer_;
  (read.newer_ == nullptr ? newest_ : read.newer_->older_) = read.older_;
  count_.fetch_sub(1, std::memory_order_relaxed);
}

Receiving::Reads Receiving::Look(absl::Time late_before) const {
  Reads reads;
  proto::MutexLock lock(&mutex_);
  for (const Read* read = oldest_; read != nullptr; read = read->newer_) {
    ++reads.all;
    if (read->may_idle_ || IsEnded(*read)) continue;
    reads.oldest = std::min(reads.oldest, read->began_);
    if (read->began_ < late_before) ++reads.late;
  }
  return reads;
}

void Receiving::Choose(Read& read, Chosen& chosen) {
  read.ended_ = clock_.Now();
  read.Retain();
  chosen.push_back(&read);
}

int64_t Receiving::End(const Chosen& chosen, const absl::Status& status) {
  for (Read* read : chosen) {
    read->EndRead(status);
    read->Release();
  }
  return static_cast<int64_t>(chosen.size());
}

void Receiving::AbortEnded(absl::Time before) {
  Chosen chosen;
  {
    proto::MutexLock lock(&mutex_);
    for (Read* read = oldest_; read != nullptr; read = read->newer_) {
      if (read->ended_ < before) Choose(*read, chosen);
    }
  }
  for (Read* read : chosen) {
    read->AbortRead();
    read->Release();
  }
}

int64_t Receiving::EndSince(absl::Time before, const absl::Status& status) {
  Chosen chosen;
  {
    proto::MutexLock lock(&mutex_);
    for (Read* read = oldest_; read != nullptr && read->began_ < before; read = read->newer_) {
      if (!read->may_idle_ && !IsEnded(*read)) Choose(*read, chosen);
    }
  }
  return End(chosen, status);
}

int64_t Receiving::EndOfGreediest(absl::Time before, const absl::Status& status) {
  Chosen chosen;
  {
    proto::MutexLock lock(&mutex_);
    absl::flat_hash_map<uint64_t, int64_t> reads;  // by session
    uint64_t greediest = 0;
    int64_t most = 0;
    for (Read* read = oldest_; read != nullptr && read->began_ < before; read = read->newer_) {
      if (IsEnded(*read)) continue;
      const int64_t count = ++reads[read->session_];
      if (count < most) continue;
      most = count;
      greediest = read->session_;
    }
    if (most == 0) return 0;
    for (Read* read = oldest_; read != nullptr && read->began_ < before; read = read->newer_) {
      if (read->session_ == greediest && !IsEnded(*read)) Choose(*read, chosen);
    }
  }
  return End(chosen, status);
}

}  // namespace rope::server
