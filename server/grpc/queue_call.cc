#include "server/grpc/queue_call.h"

#include <iterator>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "server/memory/peers.h"
#include "server/request/request.h"

namespace rope::server {
namespace {

// A client cancels a call when its deadline ends, which may be a little earlier than here.
constexpr absl::Duration kDeadlineSlack = absl::Milliseconds(50);
// Calls that are ended under one lock.
constexpr int64_t kEndedAtOnce = 64;

// The value of a header; of the last one if there are several.
absl::string_view LastHeader(const RawContext& context, const char* name) {
  const auto [first, end] = context.client_metadata().equal_range(name);
  if (first == end) return {};
  const grpc::string_ref value = std::prev(end)->second;
  return {value.data(), value.size()};
}

}  // namespace

// The reads form a doubly linked list through their calls, ordered by the time at which they began:
// Enter appends to the newest end, so a walk from oldest_ can stop at the first that began too
// late. Enter and Leave are O(1) and allocate nothing, because every message pays for them.

void MessageReads::Enter(Entry& entry, const std::shared_ptr<Connection>& connection,
                         bool may_idle) {
  entry.connection_ = connection;
  entry.may_idle_ = may_idle;
  entry.began_ = clock_.Now();
  entry.ended_at_ = absl::InfiniteFuture();
  if (!may_idle) connection->BeginRead();
  proto::MutexLock lock(&mutex_);
  ROPE_CHECK(!entry.entered_);
  entry.entered_ = true;
  entry.older_ = newest_;
  entry.newer_ = nullptr;
  (newest_ == nullptr ? oldest_ : newest_->newer_) = &entry;
  newest_ = &entry;
  if (!may_idle) count_.fetch_add(1, std::memory_order_relaxed);
  has_new_.store(true, std::memory_order_relaxed);
}

void MessageReads::Leave(Entry& entry) {
  if (!entry.may_idle_) entry.connection_->EndRead();
  proto::MutexLock lock(&mutex_);
  ROPE_CHECK(entry.entered_);
  entry.entered_ = false;
  (entry.older_ == nullptr ? oldest_ : entry.older_->newer_) = entry.newer_;
  (entry.newer_ == nullptr ? newest_ : entry.newer_->older_) = entry.older_;
  if (!entry.may_idle_) count_.fetch_sub(1, std::memory_order_relaxed);
}

int64_t MessageReads::CountLate(absl::Time before) const {
  int64_t late = 0;
  proto::MutexLock lock(&mutex_);
  for (const Entry* entry = oldest_; entry != nullptr && entry->began_ < before;
       entry = entry->newer_) {
    if (!entry->may_idle_) ++late;
  }
  return late;
}

int64_t MessageReads::CountAll() const {
  int64_t all = 0;
  proto::MutexLock lock(&mutex_);
  for (const Entry* entry = oldest_; entry != nullptr; entry = entry->newer_) ++all;
  return all;
}

int64_t MessageReads::EndSince(absl::Time before, const absl::Status& status) {
  int64_t ended = 0;
  proto::MutexLock lock(&mutex_);
  for (Entry* entry = oldest_; entry != nullptr && entry->began_ < before; entry = entry->newer_) {
    if (entry->may_idle_ || entry->read_ended()) continue;
    End(*entry, status);
    if (++ended == kEndedAtOnce) break;
  }
  return ended;
}

void MessageReads::CancelEnded(absl::Time ended_before) {
  proto::MutexLock lock(&mutex_);
  for (Entry* entry = oldest_; entry != nullptr; entry = entry->newer_) {
    if (entry->ended_at_ >= ended_before) continue;
    entry->ended_at_ = clock_.Now();
    entry->CancelRead();
  }
}

int64_t MessageReads::EndOfGreediest(absl::Time before, const absl::Status& status) {
  proto::MutexLock lock(&mutex_);
  for (const bool streams : {false, true}) {
    const auto counts_for = [&](const Entry& entry) {
      return entry.may_idle_ == streams && !entry.read_ended();
    };
    absl::flat_hash_map<const Connection*, int64_t> reads;
    const Connection* greediest = nullptr;
    int64_t most = 0;
    for (Entry* entry = oldest_; entry != nullptr && entry->began_ < before;
         entry = entry->newer_) {
      if (!counts_for(*entry)) continue;
      const int64_t count = ++reads[entry->connection_.get()];
      if (count < most) continue;
      most = count;
      greediest = entry->connection_.get();
    }
    for (Entry* entry = oldest_; most > 0 && entry != nullptr && entry->began_ < before;
         entry = entry->newer_) {
      if (counts_for(*entry) && entry->connection_.get() == greediest) End(*entry, status);
    }
    if (most > 0) return most;
  }
  return 0;
}

void MessageReads::End(Entry& entry, const absl::Status& status) {
  entry.ended_at_ = clock_.Now();
  entry.EndRead(status);
}

void QueueCall::Arrived(bool ok) {
  if (!ok) {  // shutdown before a call came: gRPC sends no done notification
    delete this;
    return;
  }
  const std::string peer = context_.peer();
  session_ = SessionOfPeer(peer);
  connection_ = parts_.connections->Of(peer);
  if (connection_->is_proxy()) {
    forwarded_owner_ = ForwardedOwner(LastHeader(context_, "x-forwarded-client-cert"),
                                      LastHeader(context_, "x-forwarded-for"));
  }
  connection_->BeginCall();
  arming_->Take();
  OnArrived();
  arming_->ArmIfFew();
}

// The message counts before its read ends, so that its bytes always have a reason.
void QueueCall::Read(bool ok) {
  if (ok) connection_->CountMessage(static_cast<int64_t>(message_.Length()));
  LeaveReads();
  OnRead(ok);
}

void QueueCall::Done(bool) {
  if (context_.IsCancelled()) {
    cancelled_->store(true, std::memory_order_relaxed);
    if (time_left() > kDeadlineSlack) connection_->LoseCall();
  }
  connection_->EndCall();
  OnDone();
}

void CallArming::Start(CallQueue& queue, const RequestCall& request, int wanted, Make make) {
  const std::shared_ptr<CallArming> arming(
      new CallArming(queue, request, wanted, std::move(make)));  // owned by its calls
  arming->Refill();
}

void CallArming::ArmUpTo(int count) {
  for (; armed_ < count; ++armed_) make_(shared_from_this()).release()->Request(request_);
}

}  // namespace rope::server
